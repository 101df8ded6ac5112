"""Report on a store: from an open store to numbers, findings, a terminal report and a page.

Read in this order: health (all numbers; lengths, repeats and rows measure parts of them),
findings (what looks wrong), terminal and page (how both are shown). build is the report of a build,
progress the line of work in progress, vocabularies the comparison of several before a build.
"""
