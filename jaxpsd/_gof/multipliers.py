"""Random multipliers of draws, for bootstraps: signs packed 32 to a word, and multinomial counts.

Bit t of word k is the sign of draw 32k + t, set for −1. It follows from the key and the draw's place alone,
so that the size of blocks, of batches or of a device's share changes nothing.

All dependent signs are running products of sign *changes*. Independent signs change with probability ½ at
every draw; block signs with probability ½ at the start of every block; Markov signs with a probability of
their own everywhere (Chwialkowski et al., 2016). At the start of a chain all of them are drawn anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt, UInt8, UInt32

from jaxpsd._core.blocks import Span, block_length, num_draws, num_local_draws, scan_over_blocks, weighted
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.sharding import gather_shares, num_shares, share_index
from jaxpsd._core.types import PyTree, Scalar, static

WORD = 32
"""Draws whose signs share a word."""

LONGEST_CHAIN = 2**30
"""Draws that a chain or a block can count. Signs are drawn anew after them, which changes nothing."""

# Probabilities are multiples of 2⁻²⁴ with few significant bits: each bit costs random words.
_PROBABILITY_BITS, _SIGNIFICANT_BITS = 24, 6

Words = UInt32[Array, "words replicates"]
Parity = UInt32[Array, " replicates"]
Multipliers = Float[Array, "block one_and_replicates"]
Row = Float[Array, " one_and_replicates"]


def number(value: float, dtype: Any) -> Any:
    """A number for programs, left to NumPy: they take it in less time than it takes to move it to a device."""
    return np.asarray(value, dtype)


class Place(NamedTuple):
    """Where a run of draws begins.

    word, bit
        The draw's place among all draws, 32 · word + bit; two numbers, since one would end at 2³² draws.
    phase
        How many draws of its chain come before it.
    """

    word: UInt32[Array, ""]
    bit: UInt32[Array, ""]
    phase: Int[Array, ""]

    @classmethod
    def at(cls, index: int, phase: int = 0) -> "Place":
        """The place of draw number `index`, which may exceed what an array's integers hold."""
        word, bit = divmod(index, WORD)
        return cls(number(word, np.uint32), number(bit, np.uint32), number(phase, np.int32))

    def after(self, length: Int[Array, ""] | int, chain: Int[Array, ""]) -> "Place":
        """The place so many draws further on, where chains of a given length follow one another."""
        bit = self.bit + jnp.asarray(length).astype(jnp.uint32)
        return Place(self.word + bit // WORD, bit % WORD, (self.phase + length) % chain)

    def plus(self, other: "Place") -> "Place":
        """Where places count draws: as many as both together, in the phase of this one."""
        bit = self.bit + other.bit
        return Place(self.word + other.word + bit // WORD, bit % WORD, self.phase)

    @property
    def number(self) -> int:
        """The draw's place among all draws, as a number; not where it is being traced."""
        return int(self.word) * WORD + int(self.bit)


@compile_by_work
def key_of_bits(rng_key: PRNGKeyArray) -> PRNGKeyArray:
    """A key whose random words do not depend on how many keys are used at once, as some kinds of keys do."""
    return jax.random.wrap_key_data(jax.random.bits(rng_key, (2,), jnp.uint32), impl="threefry2x32")


def representable(probability: float) -> float:
    """The probability of a sign change that is nearest to the one asked for."""
    scaled = max(1.0, probability * 2**_PROBABILITY_BITS)
    unit = 2 ** max(0, int(scaled).bit_length() - _SIGNIFICANT_BITS)
    return round(scaled / unit) * unit / 2**_PROBABILITY_BITS


@register_dataclass
@dataclass(frozen=True)
class Signs:
    """Signs of all draws in all replicates.

    key
        From `key_of_bits`.
    change
        Probability that a Markov sign differs from the one before.
    block
        Draws in a block of equal signs.
    chain
        Draws in a chain.
    origin
        The place of the first draw.
    kind
        "rademacher", "markov" or "block".
    shift
        What is added to the multipliers of each column, to resample a statistic about a value other than zero.
    """

    key: PRNGKeyArray
    change: Scalar
    block: Int[Array, ""]
    chain: Int[Array, ""]
    origin: Place
    kind: str = static()
    num_replicates: int = static()
    shift: Row | None = None

    def words(self, place: Place, length: int, before: Parity, seen: Int[Array, ""] | int = 0) -> tuple[Words, Parity]:
        """Signs of `length` draws from a place on, given the signs of the draw before; and those of the last draw.

        The first `seen` draws have been dealt with earlier: at them no sign changes.
        """
        fair_key, change_key = jax.random.split(self.key)
        fair = _random_words(fair_key, place, length, self.num_replicates)
        if self.kind == "rademacher":
            return fair, before
        within = (place.phase + jnp.arange(length)) % self.chain
        if self.kind == "block":
            changes = fair & _packed(within % self.block == 0)
        else:
            starts = _packed(within == 0)
            random = partial(_random_words, place=place, length=length, num_replicates=self.num_replicates)
            changes = (fair & starts) | (_unfair_words(change_key, self.change, random) & ~starts)
        signs = _running_parity(changes & _packed(jnp.arange(length) >= seen)) ^ before[None]
        last_word, last_bit = divmod(length - 1, WORD)
        return signs, _filled(signs[last_word] >> last_bit)

    def start(self) -> Parity:
        """What is handed on from block to block, before the first: every replicate has the sign +1."""
        return jnp.zeros(self.num_replicates, jnp.uint32)

    def of_block(self, span: Span, length: int, before: Parity, dtype: jnp.dtype) -> tuple[Multipliers, Parity]:
        """Multipliers of a block of draws, a column of ones first."""
        words, last = self.words(self.origin.after(span.start, self.chain), length, before, span.fresh - span.start)
        return _moved(unpacked(words, length, dtype), self.shift), last

    def about(self, part: Scalar, num_draws: int) -> tuple["Signs", Row]:
        """Multipliers σ · part + v − v̄, with mean σ · part over draws and variance σ² in every replicate; and σ².

        Divided by σ they would all have the same mean and variance; where all signs agree, σ² is zero, and they cannot
        be. The column of ones stays, as if its variance were 1.
        """

        def on_block(span: Span, before: Parity, block: Array, fresh: Array | None) -> tuple[Parity, Array, None]:
            signs, last = self.of_block(span, len(block), before, part.dtype)
            return last, weighted(signs, fresh).sum(axis=0), None

        length = block_length(num_draws, 4 * (1 + self.num_replicates))
        everywhere = jnp.zeros(num_draws, part.dtype)
        _, total, _ = scan_over_blocks(on_block, self.start(), everywhere, None, length)
        mean = total / num_draws
        variance = ((1 - mean) * (1 + mean)).at[0].set(1)
        return replace(self, shift=(jnp.sqrt(variance) * part - mean).at[0].set(0)), variance

    def of_share(self, arrays: PyTree) -> "Signs":
        """The signs of the draws that this device has."""
        if num_shares() == 1:
            return self
        length = num_local_draws(arrays)
        origin = lax.fori_loop(0, share_index(), lambda _, place: place.after(length, self.chain), self.origin)
        return replace(self, origin=origin)

    def prepared(self, num_draws: int) -> "PackedSigns":
        """The signs of all draws, in memory: a bit each."""
        words, last = self.words(self.origin, num_draws, self.start())
        return PackedSigns(jnp.pad(words ^ self.before_share(last)[None], ((0, 1), (0, 0))), self.shift)

    def before_share(self, last: Parity) -> Parity:
        """The signs of the draw before those of this device, from what each has handed on at its end."""
        if num_shares() == 1 or self.kind == "rademacher":
            return self.start()
        is_before = jnp.arange(num_shares())[:, None] < share_index()
        return jnp.bitwise_xor.reduce(jnp.where(is_before, gather_shares(last), jnp.uint32(0)), axis=0)


class PackedSigns(NamedTuple):
    """Signs of all draws, and a word too many; and what is added to them."""

    words: Words
    shift: Row | None

    def rows(self, start: Int[Array, ""], length: int) -> Multipliers:
        """Multipliers of some draws, a column of ones first."""
        some = lax.dynamic_slice_in_dim(self.words, start // WORD, num_words(length) + 1)
        signs = unpacked(_aligned(some, (start % WORD).astype(jnp.uint32)), length, jnp.dtype(jnp.float32))
        return _moved(signs, self.shift)


def _moved(signs: Multipliers, shift: Row | None) -> Multipliers:
    return signs if shift is None else signs + shift[None]


@register_dataclass
@dataclass(frozen=True)
class Multinomial:
    """Multipliers w − 1, where w counts how often each draw is drawn again, with replacement.

    Unlike signs they are made for all draws at once: the counts of each replicate add up to their number.
    """

    key: PRNGKeyArray
    num_replicates: int = static()

    def of_share(self, arrays: PyTree) -> "Counts":
        """The counts of the draws that this device has, in memory: a byte each, as one in 10⁵⁰⁰ exceeds 255."""
        length, total = num_local_draws(arrays), num_draws(arrays)

        def once(replicate: Int[Array, ""]) -> UInt8[Array, " draws"]:
            drawn = jax.random.randint(jax.random.fold_in(self.key, replicate), (total,), 0, total)
            place = drawn - share_index() * length
            # Places before the first would be counted from the end.
            place = jnp.where(place < 0, length, place)
            return jnp.zeros(length, jnp.uint8).at[place].add(1, mode="drop")

        return Counts(lax.map(once, jnp.arange(self.num_replicates), batch_size=16).T)


class Counts(NamedTuple):
    """The counts w of all draws."""

    counts: UInt8[Array, "draws replicates"]

    @property
    def num_replicates(self) -> int:
        """How many replicates there are."""
        return self.counts.shape[1]

    def start(self) -> None:
        """Nothing is handed on from block to block."""

    def of_block(self, span: Span, length: int, before: None, dtype: jnp.dtype) -> tuple[Multipliers, None]:
        """Multipliers of a block of draws, a column of ones first."""
        return self.rows(span.start, length).astype(dtype), before

    def rows(self, start: Int[Array, ""], length: int) -> Multipliers:
        """Multipliers of some draws, a column of ones first."""
        some = lax.dynamic_slice_in_dim(self.counts, start, length).astype(jnp.float32) - 1
        return jnp.pad(some, ((0, 0), (1, 0)), constant_values=1)


# --- words ------------------------------------------------------------------------------------------------


def num_words(length: int) -> int:
    """Words that hold the signs of so many draws."""
    return -(-length // WORD)


def unpacked(words: Words, length: int, dtype: jnp.dtype) -> Multipliers:
    """Signs as numbers, a row for each draw, behind a column of ones: the draws as they are."""
    words = jnp.pad(words, ((0, 0), (1, 0)))
    bit = jnp.left_shift(jnp.uint32(1), jnp.arange(WORD, dtype=jnp.uint32))[None, :, None]
    signs = jnp.where(words[:, None] & bit == 0, jnp.ones((), dtype), -jnp.ones((), dtype))
    return signs.reshape(-1, words.shape[1])[:length]


def _random_words(key: PRNGKeyArray, place: Place, length: int, num_replicates: int) -> Words:
    """Fair bits for `length` draws from a place on; each word has a key of its own."""

    def word(index: UInt32[Array, ""]) -> UInt32[Array, " replicates"]:
        return jax.random.bits(jax.random.fold_in(key, index), (num_replicates,), jnp.uint32)

    words = jax.vmap(word)(place.word + jnp.arange(num_words(length) + 1, dtype=jnp.uint32))
    return _aligned(words, place.bit)


def _unfair_words(key: PRNGKeyArray, probability: Scalar, random: Callable[[PRNGKeyArray], Words]) -> Words:
    """Bits that are set with a given probability.

    From the last binary digit of the probability to its first: a digit 1 joins a fair bit by `or`, which
    takes p to (1 + p)/2, a digit 0 by `and`, which takes it to p/2.
    """
    digits = jnp.round(probability * 2**_PROBABILITY_BITS).astype(jnp.uint32)

    def join(position: Int[Array, ""], bits: Words) -> Words:
        fair = random(jax.random.fold_in(key, position))
        digit = (digits >> position.astype(jnp.uint32)) & 1
        return jnp.where(digit == 1, bits | fair, bits & fair)

    nothing = jnp.zeros_like(random(key))
    trailing_zeros = lax.population_count((digits & -digits) - 1).astype(jnp.int32)
    return lax.fori_loop(trailing_zeros, _PROBABILITY_BITS, join, nothing)


def _aligned(words: UInt[Array, "words_and_one replicates"], bit: UInt32[Array, ""]) -> Words:
    """Move bit number `bit` of the first word to the front, and all that follow behind it."""
    # Two steps to the left: one of 32, for bit 0, would not be defined.
    return (words[:-1] >> bit) | ((words[1:] << 1) << (WORD - 1 - bit))


def _packed(flags: Array) -> UInt32[Array, "words 1"]:
    """Flags of draws as words, the same for all replicates."""
    flags = jnp.pad(flags, (0, -len(flags) % WORD)).reshape(-1, WORD).astype(jnp.uint32)
    return (flags << jnp.arange(WORD, dtype=jnp.uint32)[None]).sum(axis=1, dtype=jnp.uint32)[:, None]


def _running_parity(changes: Words) -> Words:
    """Bit t: whether the number of changes up to and including draw t is odd."""
    for step in (1, 2, 4, 8, 16):
        changes = changes ^ (changes << step)
    odd = changes >> (WORD - 1)
    odd_before = (jnp.cumsum(odd, axis=0, dtype=jnp.uint32) - odd) & 1
    return changes ^ _filled(odd_before)


def _filled(bit: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A word of which every bit is the lowest bit of the given one."""
    return -(bit & 1)
