"""Record batches written by Kafka's `MemoryRecordsBuilder` (kafka-clients 4.3.1).

Each has three records with the offsets 100, 102 and 104 and the timestamps 1700000000000, …001 and …002, key and value
`k0`/`value-0`, null/`value-1` and `k2`/null; in magic 2 with the headers `h`=`x` and `n`=null. The log append time
is 1700000000999. Magic 0 and 1 are message sets: if compressed, a single message with all three inside.
"""

from __future__ import annotations

from base64 import b64decode
from typing import NamedTuple


class Golden(NamedTuple):
    """One batch (or message set) of three records, base64-encoded in `text`."""

    magic: int
    codec: str
    timestamp_type: int
    text: str

    @property
    def data(self) -> bytes:
        """The bytes written by Kafka."""
        return b64decode(self.text)


GOLDEN = [
    Golden(
        0,
        "none",
        0,
        "AAAAAAAAAGQAAAAXyGzHpgAAAAAAAmswAAAAB3ZhbHVlLTAAAAAAAAAAZgAAABWY3aSuAAD/////AAAAB3ZhbHVlLTEAAAAA"
        "AAAAaAAAABCLI+PaAAAAAAACazL/////",
    ),
    Golden(
        0,
        "gzip",
        0,
        "AAAAAAAAAGgAAABdccYRGwAB/////wAAAE8fiwgAAAAAAAD/Y2AAgxQgFj+Rc3wZmMeUbQAk2csSc0pTdQ0gKhjSgFh0xt0l"
        "6xgY/gMBQoEhVEEGEAt0Kz++BTXDCKQMAJy+X29gAAAA",
    ),
    Golden(
        0,
        "snappy",
        0,
        "AAAAAAAAAGgAAAB0guF5pwAC/////wAAAGaCU05BUFBZAAAAAAEAAAABAAAAUmAAAAkBIGQAAAAXyGzHpgUPMAJrMAAAAAd2"
        "YWx1ZS0BCwEBOGYAAAAVmN2krgAA/////xkhADEBHlwAAABoAAAAEIsj49oAAAAAAAJrMv////8=",
    ),
    Golden(
        1,
        "none",
        0,
        "AAAAAAAAAGQAAAAftSLfiwEAAAABi8/laAAAAAACazAAAAAHdmFsdWUtMAAAAAAAAABmAAAAHdlu99kBAAAAAYvP5WgB////"
        "/wAAAAd2YWx1ZS0xAAAAAAAAAGgAAAAY9YUBIgEAAAABi8/laAIAAAACazL/////",
    ),
    Golden(
        1,
        "none",
        1,
        "AAAAAAAAAGQAAAAf69NQKwEIAAABi8/la+cAAAACazAAAAAHdmFsdWUtMAAAAAAAAABmAAAAHW7UmXQBCAAAAYvP5Wvn////"
        "/wAAAAd2YWx1ZS0xAAAAAAAAAGgAAAAY3djBsgEIAAABi8/la+cAAAACazL/////",
    ),
    Golden(
        1,
        "gzip",
        0,
        "AAAAAAAAAGgAAABtTTsgIwEBAAABi8/laAL/////AAAAVx+LCAAAAAAAAP9jYIAD+a1K97sZgQzG7vNPM0AiTNkGQJK9LDGn"
        "NFXXAKqMCYhlb+Z9vwlXyvgfCBAKDaEKWYBY4msroxJcIRPYTCOQcgAj26vpeAAAAA==",
    ),
    Golden(
        1,
        "gzip",
        1,
        "AAAAAAAAAGgAAABsRG5UzAEJAAABi8/la+f/////AAAAVh+LCAAAAAAAAP9jYIAD+deXA7QZORgYGLvPP81+DhRhyjYAkuxl"
        "iTmlqboGUGVMQCybd2VmCULpfyBAKDSEKmQBYom7Nw5uQjPTCKQcADQ6HuB4AAAA",
    ),
    Golden(
        1,
        "snappy",
        0,
        "AAAAAAAAAGgAAACFspjZzgECAAABi8/laAL/////AAAAb4JTTkFQUFkAAAAAAQAAAAEAAABbeAAAGQE0H7Ui34sBAAAAAYvP"
        "5WgBGDACazAAAAAHdmFsdWUtAQsBASACAAAAHdlu99kVKxAB/////xkpADEBJiwAAAAEAAAAGPWFASIVKSgCAAAAAmsy////"
        "/w==",
    ),
    Golden(
        1,
        "snappy",
        1,
        "AAAAAAAAAGgAAACB0D4xTgEKAAABi8/la+f/////AAAAa4JTTkFQUFkAAAAAAQAAAAEAAABXeAAAGQF4H+vTUCsBCAAAAYvP"
        "5WvnAAAAAmswAAAAB3ZhbHVlLQELAQEgAgAAAB1u1Jl0GSsM/////xkpADEBJjAAAAAEAAAAGN3YwbIBNlQAEDL/////",
    ),
    Golden(
        1,
        "lz4",
        0,
        "AAAAAAAAAGgAAACAOpKOUAEDAAABi8/laAL/////AAAAagQiTRhgQIJbAAAAFgABAOAftSLfiwEAAAABi8/laBgA0AJrMAAA"
        "AAd2YWx1ZS0LAAACAJUCAAAAHdlu99krAFYB/////ykAEDEmAMUAAAAEAAAAGPWFASIpALACAAAAAmsy/////wAAAAA=",
    ),
    Golden(
        1,
        "lz4",
        1,
        "AAAAAAAAAGgAAACA8dATOwELAAABi8/la+f/////AAAAagQiTRhgQIJbAAAAFgABAPAQH+vTUCsBCAAAAYvP5WvnAAAAAmsw"
        "AAAAB3ZhbHVlLQsAAAIAlgIAAAAdbtSZdCsARv////8pABAxJgDGAAAABAAAABjd2MGyKQCgAAAAAmsy/////wAAAAA=",
    ),
    Golden(
        2,
        "none",
        0,
        "AAAAAAAAAGQAAABt/////wJIoVFTAAAAAAAEAAABi8/laAAAAAGLz+VoAv//////////////////AAAAAywAAAAEazAOdmFs"
        "dWUtMAQCaAJ4Am4BKAACBAEOdmFsdWUtMQQCaAJ4Am4BHgAECARrMgEEAmgCeAJuAQ==",
    ),
    Golden(
        2,
        "none",
        1,
        "AAAAAAAAAGQAAABt/////wJvKNzmAAgAAAAEAAABi8/laAAAAAGLz+Vr5///////////////////AAAAAywAAAAEazAOdmFs"
        "dWUtMAQCaAJ4Am4BKAACBAEOdmFsdWUtMQQCaAJ4Am4BHgAECARrMgEEAmgCeAJuAQ==",
    ),
    Golden(
        2,
        "gzip",
        0,
        "AAAAAAAAAGQAAABv/////wIURvEYAAEAAAAEAAABi8/laAAAAAGLz+VoAv//////////////////AAAAAx+LCAAAAAAAAP/T"
        "YWBgYMk24CtLzClN1TVgYcpgqmDKY9RgYGJhhAoawgTlGFg4WLKNGGF8AARarYE8AAAA",
    ),
    Golden(
        2,
        "gzip",
        1,
        "AAAAAAAAAGQAAABv/////wLPPbDrAAkAAAAEAAABi8/laAAAAAGLz+Vr5///////////////////AAAAAx+LCAAAAAAAAP/T"
        "YWBgYMk24CtLzClN1TVgYcpgqmDKY9RgYGJhhAoawgTlGFg4WLKNGGF8AARarYE8AAAA",
    ),
    Golden(
        2,
        "snappy",
        0,
        "AAAAAAAAAGQAAAB6/////wJpN2kGAAIAAAAEAAABi8/laAAAAAGLz+VoAv//////////////////AAAAA4JTTkFQUFkAAAAA"
        "AQAAAAEAAAA1PGwsAAAABGswDnZhbHVlLTAEAmgCeAJuASgAAgQBDRUAMREVPB4ABAgEazIBBAJoAngCbgE=",
    ),
    Golden(
        2,
        "snappy",
        1,
        "AAAAAAAAAGQAAAB6/////wKNWC/EAAoAAAAEAAABi8/laAAAAAGLz+Vr5///////////////////AAAAA4JTTkFQUFkAAAAA"
        "AQAAAAEAAAA1PGwsAAAABGswDnZhbHVlLTAEAmgCeAJuASgAAgQBDRUAMREVPB4ABAgEazIBBAJoAngCbgE=",
    ),
    Golden(
        2,
        "lz4",
        0,
        "AAAAAAAAAGQAAAB2/////wKEcBngAAMAAAAEAAABi8/laAAAAAGLz+VoAv//////////////////AAAAAwQiTRhgQII2AAAA"
        "8w0sAAAABGswDnZhbHVlLTAEAmgCeAJuASgAAgQBFQAUMRUA8AEeAAQIBGsyAQQCaAJ4Am4BAAAAAA==",
    ),
    Golden(
        2,
        "lz4",
        1,
        "AAAAAAAAAGQAAAB2/////wJZE+SqAAsAAAAEAAABi8/laAAAAAGLz+Vr5///////////////////AAAAAwQiTRhgQII2AAAA"
        "8w0sAAAABGswDnZhbHVlLTAEAmgCeAJuASgAAgQBFQAUMRUA8AEeAAQIBGsyAQQCaAJ4Am4BAAAAAA==",
    ),
    Golden(
        2,
        "zstd",
        0,
        "AAAAAAAAAGQAAABz/////wKPA+TnAAQAAAAEAAABi8/laAAAAAGLz+VoAv//////////////////AAAAAyi1L/0AWLQBANQC"
        "LAAAAARrMA52YWx1ZS0wBAJoAngCbgEoAAIEATEeAAQIBGsyAQQCaAJ4Am4BAgCACDCbTgEAAA==",
    ),
    Golden(
        2,
        "zstd",
        1,
        "AAAAAAAAAGQAAABz/////wIUsrkhAAwAAAAEAAABi8/laAAAAAGLz+Vr5///////////////////AAAAAyi1L/0AWLQBANQC"
        "LAAAAARrMA52YWx1ZS0wBAJoAngCbgEoAAIEATEeAAQIBGsyAQQCaAJ4Am4BAgCACDCbTgEAAA==",
    ),
]
