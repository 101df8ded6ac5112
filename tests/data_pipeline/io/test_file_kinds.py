"""Recognize pointers, pages and dumps by their first bytes, and leave text alone."""

import pytest

from data_pipeline.io.file_kinds import find_markup, find_stand_in

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:74bf\nsize 468639971\n"
PAGE = b"<html><head><title>503</title></head><body>Unavailable</body></html>"
DECLARED = {
    "lfs": (POINTER, "git-lfs pointer to a file of 468,639,971 bytes"),
    "old lfs": (b"version https://hawser.github.com/spec/v1\n", "git-lfs"),
    "annex": (b"/annex/objects/SHA256E-s10--ab.bin\n", "git-annex"),
    "annex link": (b"../.git/annex/objects/x/y/SHA256E-s10--ab/SHA256E-s10--ab", "git-annex"),
    "page": (PAGE, "HTML"),
    "capitals": (b"<!DOCTYPE HTML PUBLIC '-//W3C//DTD HTML 4.01//EN'>\n<HTML>", "HTML"),
    "lower case": (b"<!doctype html><p>", "HTML"),
    "behind a mark": (b"\xef\xbb\xbf \r\n\t<!DocType\thtml>", "HTML"),
    "behind comments": (b"<!-- saved -->\n<!-- x --> <HTML lang='en'>", "HTML"),
    "xhtml": (b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">', "HTML"),
    "xhtml alone": (b"<?xml version='1.0'?><html xmlns='x'>", "HTML"),
    "xml": (b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "XML"),
    "styled xml": (b"<?xml version='1.0'?><?xml-stylesheet href='a'?><tei>", "XML"),
    "doctype": (b"<!DOCTYPE tei SYSTEM 'tei.dtd'>", "XML"),
    "dump": (b'<mediawiki version="0.11">\n <page>', "MediaWiki"),
    "declared dump": (b'<?xml version="1.0"?>\n<mediawiki xmlns="http://x">', "MediaWiki"),
    "github": (b"404: Not Found", "message of a server"),
    "hub": (b"Entry not found\n", "message of a server"),
    "number": (b"Error 503 - Service Unavailable", "message of a server"),
    "proxy": (b"502 Bad Gateway\n", "message of a server"),
    "go": (b"404 page not found\n", "message of a server"),
    "explained": (b"503 Service Unavailable\r\nNo server is here.\n", "message of a server"),
    "redirect": (b"Found. Redirecting to https://cdn-lfs.hf.co/repos/x?y=1", "message of a server"),
    "gated": (b"Access to model a/b is restricted. Please log in.", "message of a server"),
    "headers": (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nText.", "with its headers"),
    "crawl": (b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\nText.", "WARC"),
    "api": (b"Bad credentials", "message of a server"),
    "cluster": (b"default backend - 404\n", "message of a server"),
    "envoy": (b"upstream connect error or disconnect before headers", "message of a server"),
    "pdf": (b"%PDF-1.7\n%", "PDF"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%Title: x\n", "PostScript"),
    "mysql": (b"-- MySQL dump 10.19  Distrib 10.3\n--\n", "SQL"),
    "mariadb": (b"/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump 10.19\n", "SQL"),
    "postgres": (b"--\n-- PostgreSQL database dump\n--\n", "SQL"),
    "mhtml": (b"From: <Saved by Blink>\r\nMIME-Version: 1.0\r\n", "HTML"),
    "rtf": (b"{\\rtf1\\ansi hello}", "RTF"),
}


@pytest.mark.parametrize("name", DECLARED)
def test_what_declares_itself_is_named(name):
    data, words = DECLARED[name]
    for find in (find_stand_in, find_markup):
        kind = find(data)
        assert kind is not None and words in kind.looks


MARKUP = {
    "fragment": (b"<div class='a'><p>One.</p>\n\n<p>Two.</p></div>\n", "HTML"),
    "rows": (b"<p>One\n<p>Two\n<p>Three <b>now</b>\n" * 9, "HTML"),
    "records": (b"<DOC>\n<DOCNO>1</DOCNO>\n<TEXT>\nWords.\n</TEXT>\n</DOC>\n" * 3, "XML"),
    "cut in a record": ((b"<DOC>\n" + b"Words.\n" * 9 + b"</DOC>\r\n") * 9 + b"<DOC>\nWor", "XML"),
    "root": (b"<corpus id='1'>\n" + b"A line of text.\n" * 99 + b"</corpus>", "XML"),
}

LAYOUTS = {
    "vtt": (
        b"\xef\xbb\xbfWEBVTT - made by hand\r\n\r\n00:01.000 --> 00:04.000\r\nHi.\r\n",
        "subtitles",
    ),
    "bare vtt": (b"WEBVTT\n\n00:01.000 --> 00:04.000\nHi.\n", "subtitles"),
    "srt": (b"\n1\r\n00:00:01,600 --> 00:00:04,200\r\nHi.\r\n", "subtitles"),
    "conllu": (b"# text = Hi.\n1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n", "CoNLL"),
    "two words": (b"1-2\tIm" + b"\t_" * 8 + b"\r\n1\tIn" + b"\t_" * 8 + b"\r\n", "CoNLL"),
    "vertical": (b'<doc id="1">\n<p>\n<s>\nThe\tDT\tthe\n</s>\n</p>\n</doc>\n', "vertical"),
    "title": (
        b"<doc id=1>\r\n\r\n<title>T</title>\r\n<p>Words.\r\n</doc>\r\n",
        "tags within its <doc>",
    ),
    "leipzig": (b"1\tIt rained.\n2\tShe left.\n3\tHe came.\n", "running number"),
    "cat -n": (b"     1\tOne.\r\n     2\t\r\n     3\tTwo.\r\n", "running number"),
    "index": (b"0\tOne.\n1\tTwo.\n2\tThree.\n3\tFour.\n", "running number"),
    "conll 2003": (b"-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n", "CoNLL"),
}


@pytest.mark.parametrize("name", [*MARKUP, *LAYOUTS])
def test_text_that_is_mostly_tags_is_markup(name):
    data, words = (MARKUP | LAYOUTS)[name]
    assert find_stand_in(data) is None
    kind = find_markup(data)
    assert kind is not None and words in kind.looks


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<",
        b"< 5 is less than five.",
        b"<3 you all.",
        b"The tag <html> opens a page.\n<html>\n</html>",
        b'"<!DOCTYPE html>" is the first line of a page.',
        b"<i>Moby Dick</i>\n" + b"Call me Ishmael. Some years ago.\n" * 50,
        b"<anna> hi there\n<ben> hello\n" * 20,
        b"<unk> is the <unk> word of <unk> .\n" * 20,
        b"<Anna> hi there\nhow are you\nfine\nand you\nme too\n" * 9,
        b'<doc id="1" url="x" title="T">\nT\n\nText.\n</doc>\n',
        b'<doc id="1" title="T > S">\nT > S\n\n<b>Text</b>.\n</doc>\n',
        b'<doc id="1" title="T">\n</doc>\n<doc id="2">\nText.\n</doc>\n',
        b"version https is a scheme\n",
        b"version 2 of the text is better.\n",
        b"Not found among the papers was the will.",
        b"Bad credentials were all that he had.",
        b"404 Not Found is what the server said.",
        b"HTTP/1.1 404 is an answer.\nIt has a number.",
        b"WARC/1.0 is a format.",
        b"From: <Anna>\nSaved by grace.\n",
        b"-- MySQL is a database.",
        b"Found. Redirecting to a new hope was all she did.",
        b"<!-- a comment that never ends",
        b"<!-- a comment -->\nThen text.",
        b"{\\it italic}",
        b"WEBVTT is a format of subtitles.\n",
        b"1\n00:00 is midnight.\n",
        b"# A heading\n1\tone\tword\n",
        b"1\tThe first.\n2\tThe second.\nThat is all.\n",
        b"-DOCSTART- is a line of CoNLL 2003 that opens a document.\n",
    ],
)
def test_text_is_no_stand_in(text):
    assert find_stand_in(text) is None
    assert find_markup(text) is None
