"""Read the fields of a SentencePiece model file that SentencePiece's library does not report.

The file is a protocol buffer. The reader that comes with the library requires a newer protobuf than
TensorFlow allows, so the fields that are needed are declared here.
Source: sentencepiece_model.proto, sentencepiece v0.2.0.
"""

import functools
import re
from typing import Any

WORD_START = "\u2581"  # stands in pieces for the space before a word
# A byte of a character that a vocabulary with SentencePiece's fallback has no piece for.
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
UNIGRAM, BPE = 1, 2  # TrainerSpec.model_type; 3 and 4 are words and characters
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.type

# message -> its fields: name, number, type, default. Enumerations are read as numbers.
_MESSAGES = {
    "SentencePiece": (
        ("piece", 1, "STRING", ""),
        ("score", 2, "FLOAT", ""),
        ("type", 3, "INT32", "1"),
    ),
    "TrainerSpec": (
        ("model_type", 3, "INT32", "1"),
        ("treat_whitespace_as_suffix", 24, "BOOL", ""),
        ("byte_fallback", 35, "BOOL", ""),
    ),
    "NormalizerSpec": (
        ("precompiled_charsmap", 2, "BYTES", ""),
        ("add_dummy_prefix", 3, "BOOL", "true"),
        ("remove_extra_whitespaces", 4, "BOOL", "true"),
        ("escape_whitespaces", 5, "BOOL", "true"),
    ),
    "ModelProto": (
        ("pieces", 1, "SentencePiece", ""),
        ("trainer_spec", 2, "TrainerSpec", ""),
        ("normalizer_spec", 3, "NormalizerSpec", ""),
    ),
}


def read_model(data: bytes) -> Any:
    """Read the bytes of a model file as the message ModelProto; its pieces are sorted by id."""
    return _make_message_class().FromString(data)


@functools.cache
def _make_message_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="sentencepiece_model.proto")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, default in fields:
            is_message = kind in _MESSAGES
            described.field.add(
                name=name,
                number=number,
                label=kinds.LABEL_REPEATED if name == "pieces" else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if is_message else kinds.Type.Value(f"TYPE_{kind}"),
                type_name=kind if is_message else None,
                default_value=default or None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ModelProto"))
