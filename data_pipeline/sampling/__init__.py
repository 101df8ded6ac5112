"""Sample pre-training batches: from an open store to rows, each a pure function of its position.

Read in this order: batches (what a stream of rows is, and the batches of each step), stream
(positions to rows, of text or of ready-made examples); then, for text, walks (all walks of a run),
walk (corpus to chunks), pairs (chunks to segments A and B), rows, masking and packing (segments to
arrays); and mixture (several stores as one stream).
"""
