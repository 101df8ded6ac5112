# shellcheck shell=bash
# Sourced by cluster.sh: what comes from outside (workers, Google Cloud, files, arguments) is data. It reaches
# arithmetic only through set_number, and a terminal only through escape_line or escape_lines.

# set_number NAME VALUE [DIGITS]: gives the variable NAME the whole number VALUE, 08 as 8. Fails, and leaves it
# unchanged, if VALUE is none or longer. (( )) would evaluate, and so run, what is no number.
set_number() {
    [[ -n $2 && -z ${2//[0123456789]/} && ${#2} -le ${3-15} ]] || return 1
    printf -v "$1" '%d' "$((10#$2))"
}

# escape_bytes TEXT: prints TEXT with \x1b and the like for control characters (except tab), those that change
# the direction of writing, and bytes that are not UTF-8. LC_ALL must be C. A window
# keeps a long text from being copied once a byte.
escape_bytes() {
    local more=$1 rest='' escaped='' plain length code
    while [[ -n $rest$more ]]; do
        if ((${#rest} < 4)); then
            printf '%s' "$escaped"
            escaped='' rest+=${more:0:200} more=${more:200}
        fi
        plain=${rest%%[!$'\t'\ -~]*}
        if [[ -n $plain ]]; then
            escaped+=$plain rest=${rest:${#plain}}
            continue
        fi
        length=0
        case $rest in
            $'\302'[$'\200'-$'\237']* | $'\330\234'*) ;;
            $'\342\200'[$'\216'$'\217'$'\250'-$'\256']* | $'\342\201'[$'\246'-$'\251']*) ;;
            [$'\302'-$'\337'][$'\200'-$'\277']*) length=2 ;;
            $'\340'[$'\200'-$'\237']* | $'\355'[$'\240'-$'\277']*) ;;
            [$'\340'-$'\357'][$'\200'-$'\277'][$'\200'-$'\277']*) length=3 ;;
            $'\360'[$'\200'-$'\217']* | $'\364'[$'\220'-$'\277']*) ;;
            [$'\360'-$'\364'][$'\200'-$'\277'][$'\200'-$'\277'][$'\200'-$'\277']*) length=4 ;;
        esac
        if ((length > 0)); then
            escaped+=${rest:0:length} rest=${rest:length}
        else
            # Some versions of bash count a byte from 128 on as less than zero.
            printf -v code '%d' "'${rest:0:1}"
            printf -v code '\\x%02x' "$((code & 255))"
            escaped+=$code rest=${rest:1}
        fi
    done
    printf '%s' "$escaped"
}

# escape_line TEXT: the same in one line.
escape_line() (
    LC_ALL=C
    escape_bytes "$1"
    echo
)

# Each line of the standard input as it arrives, as escape_bytes has it. One without an end comes in parts.
escape_lines() (
    LC_ALL=C
    most=65536
    while IFS= read -r -n "$most" line || [[ -n $line ]]; do
        escape_bytes "$line"
        ((${#line} == most)) || echo
    done
)
