"""Draw random numbers by hashing a key and a counter, so that any draw can be repeated.

A change of any function here changes every batch: raise HASH_VERSION with it, or a resumed run
would silently continue on other data.
"""

import enum

import numpy as np

HASH_VERSION = 1


@enum.unique
class Purpose(enum.IntEnum):
    """Number the purposes of keys, a part of `derive_key`: two purposes never share random bits.

    The numbers are frozen: a change would change the batches of every resumed run. A number is
    never reused, even after its purpose is gone.
    """

    # A walk over the corpus, which gives the sequences of an epoch.
    WALK = 1
    TARGET_LENGTH = 2
    SPLIT_OF_CHUNK = 3
    STRETCH = 9
    PACKED_ROWS = 11
    TRIAL_WALK = 12
    # A sequence: its second segment, and the tokens cut off.
    SAME_DOCUMENT = 4
    OTHER_DOCUMENT = 5
    START_OF_B = 6
    CUT_A = 7
    CUT_B = 8
    SWAP = 10
    # The order of rows, and the masks.
    LABELED_ORDER = 71
    EPOCH = 101
    EPOCH_ORDER = 102
    MASKS = 103
    WALK_MASKS = 104
    DEAL_TO_ROWS = 201
    STORED_ORDER = 211
    # Fingerprints of texts, which begin at the key 0 instead of a seed.
    DOCUMENT_FINGERPRINT = 202
    SENTENCE_FINGERPRINT = 203


# A duplicate from before this list existed, kept because it decides which imported examples are
# held out. No bits are shared: it is hashed from the key 0, DEAL_TO_ROWS from the key of a walk.
FIRST_SEGMENT_FINGERPRINT = Purpose.DEAL_TO_ROWS

_MASK64 = (1 << 64) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15
_MIX64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD_STEP = 0x632BE59BD9B4E019
_FEISTEL_ROUNDS = 4
# Rows with more words of 64 trials than this draw the remaining words in one call per row.
_SHARED_WORDS = 16


def derive_key(key: int, *parts: int) -> int:
    """Derive a 64-bit key for one purpose: mix each part into `key`, in order.

    Parts name what the key is for, e.g. derive_key(seed, PURPOSE, epoch); each must be 0 or more.

    Source: the finalizer of SplitMix64, Steele, Lea and Flood 2014.
    """
    mixed = key & _MASK64
    for part in parts:
        mixed = (mixed + (part + 1) * _GOLDEN64) & _MASK64
        mixed = ((mixed ^ (mixed >> 30)) * _MIX64[0]) & _MASK64
        mixed = ((mixed ^ (mixed >> 27)) * _MIX64[1]) & _MASK64
        mixed ^= mixed >> 31
    return mixed


def hash64(key: int, counters: np.ndarray) -> np.ndarray:
    """Hash each counter to 64 random bits.

    Shapes: integer[...] -> uint64[...], counters 0 or more.

    Source: the finalizer of SplitMix64, Steele, Lea and Flood 2014.
    """
    bits = counters.astype(np.uint64)
    bits *= np.uint64(_GOLDEN64)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_MIX64[0])
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_MIX64[1])
    bits ^= bits >> np.uint64(31)
    return bits


def hash32(row_keys_N: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Hash each counter of each row to 32 random bits, at half the cost of hash64.

    The lower half of the row's key shifts the counter and the upper half enters between the two
    multiplications, so two rows share a run of bits only if all 64 bits of their keys match.
    Keys must be hashes: keys that differ in one bit give similar bits.

    Shapes: uint64[N], uint32[S] or uint32[N,S] -> uint32[N,S].

    Source: lowbias32, https://nullprogram.com/blog/2018/07/31/.
    """
    low = row_keys_N.astype(np.uint32)[:, None]
    high = (row_keys_N >> np.uint64(32)).astype(np.uint32)[:, None]
    bits = counters * np.uint32(0x9E3779B9) + low
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x7FEB352D)
    bits ^= high
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0x846CA68B)
    bits ^= bits >> np.uint32(16)
    return bits


def draw_below(bits: np.ndarray, bounds: np.ndarray | int) -> np.ndarray:
    """Return uniform integers in [0, bound) from the upper 32 of 64 random bits.

    Shapes: uint64[...], integer[...] or one integer -> int64[...]; bounds from 1 to 2**32.
    The probabilities of two values differ by at most bound / 2**32, relatively.
    """
    scaled = (bits >> np.uint64(32)) * np.asarray(bounds).astype(np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def chance(bits: np.ndarray, probability: float) -> np.ndarray:
    """Return True with the given probability, from the lower 32 of 64 random bits.

    Shapes: uint64[...] -> bool[...]. Independent of draw_below on the same bits.
    """
    return (bits & np.uint64(0xFFFFFFFF)) < np.uint64(round(probability * 2**32))


def draw_binomial_half(key: int, counters_N: np.ndarray, trials_N: np.ndarray) -> np.ndarray:
    """Draw from Binomial(trials, 1/2), exactly, by counting random bits.

    Shapes: integer[N], int64[N] -> int64[N]; trials 0 or more.
    """
    heads_N = np.zeros(len(counters_N), np.int64)
    for word in range(min((int(trials_N.max(initial=0)) + 63) // 64, _SHARED_WORDS)):
        rows = np.flatnonzero(trials_N > 64 * word)
        bits = hash64((key + word * _WORD_STEP) & _MASK64, counters_N[rows])
        heads_N[rows] += _count_low_bits(bits, trials_N[rows] - 64 * word)
    for row in np.flatnonzero(trials_N > 64 * _SHARED_WORDS):
        words = np.arange(_SHARED_WORDS, (int(trials_N[row]) + 63) // 64)
        row_key = derive_key(key, int(counters_N[row]))
        bits = hash64(row_key, words)
        heads_N[row] += int(_count_low_bits(bits, int(trials_N[row]) - 64 * words).sum())
    return heads_N


def _count_low_bits(bits: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Count the set bits among the lowest `counted` bits of each word; above 64, all bits."""
    # Shifted from the top, since a shift by 64 is undefined: 64 - counted is from 0 to 63.
    unused = np.clip(64 - counted, 0, 63).astype(np.uint64)
    return np.bitwise_count(bits << unused).astype(np.int64)


def permute(key: int, index_N: np.ndarray, size: int) -> np.ndarray:
    """Apply a keyed random permutation of range(size) to indices, without an array of its size.

    A Feistel network permutes the next power of four; indices that land outside are permuted
    again until they land inside (four times on average at worst).

    Shapes: int64[N] with values in range(size) -> int64[N].

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    half_mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    round_keys = [derive_key(key, number) for number in range(_FEISTEL_ROUNDS)]
    image_N = index_N.astype(np.uint64)
    outside = np.arange(len(image_N))
    while len(outside):
        left, right = image_N[outside] >> shift, image_N[outside] & half_mask
        for round_key in round_keys:
            left, right = right, left ^ (hash64(round_key, right) >> np.uint64(7) & half_mask)
        image_N[outside] = (left << shift) | right
        outside = outside[image_N[outside] >= np.uint64(size)]
    return image_N.astype(np.int64)
