"""Log segments: groups of records, each group written and synced as one.

    segment = segment header, group*            group = group header, record*

    segment header (44 bytes)   magic 8 | version 2 | flags 2 | segment 8 | previous segment 8 | previous end 8 |
                                reserved 4 | crc 4
    group header (40 bytes)     magic 4 | length 4 | count 4 | segment 8 | own offset 8 | synced 8 | crc 4
    record (70 bytes + payload) place crc 4 | length 4 | payload crc 4 | kind 1 | flags 1 | table 8 | tablet 8 |
                                epoch 8 | index 8 | txn 8 | client 8 | sequence 8 | payload

All numbers are little-endian; every crc is CRC32C over everything else in its part. *Segment* is the number in a
segment's name. Length is that of the record with its header.

A record has two checksums. The *payload crc* is over the payload alone: it is made once, travels with the payload, and
whoever passes the payload on puts it into another log as it is. The *place crc* is over the rest of the header, and is
begun with the crc of the segment (8 bytes) xor the record's offset: bytes that ended up in the wrong place are not a
record.

A group header says up to which offset the segment was synced before the group was written. That decides what damage
means. Damage below an offset that some later header (or the next segment's) calls synced is *corruption*: bytes that
were safe are no longer what was written. Damage above it is the *torn tail* of a crash: nobody was told that those
bytes are safe, and they are cut.

Segments form a chain: each header names the last place before it that is known to be durable, a segment and its end.
What lies beyond that end, and any segment in between, failed to sync: its writers were told so, and it never replays.

Version 1 differs in its records only; it is read for ever, and not written any more:

    record (58 bytes + payload) length 4 | crc 4 | kind 1 | flags 1 | table 8 | tablet 8 | epoch 8 | txn 8 | client 8 |
                                sequence 8 | payload

The crc is begun with that of segment 8 | offset 8 | length 4, and covers what follows it, the payload too.
"""
