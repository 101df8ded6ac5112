"""Define how arrays and batches are sharded over devices and hosts; exchange sums between them.

In: the mesh sizes of a config. Out: a Mesh, shardings by logical axis, arrays on devices.
Read mesh, collectives, processes, chips.
"""
