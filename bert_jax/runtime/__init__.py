"""Manage a process and its workdir: flags, startup, locking, records, watchdog, preemption.

In: the command line and a workdir. Out: a config, joined processes, a locked workdir, an exit code.
Read cli, startup, workdir, workdir_lock, run_record, resume, history (compares a branch with its
trunk), code_version, watchdog, preemption, goodput, profiler.
"""
