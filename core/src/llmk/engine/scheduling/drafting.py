"""Which tokens are drafted for each sequence, and how many."""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import TYPE_CHECKING

from llmk.api import ConfigError, KernelSpec
from llmk.api.errors import describe
from llmk.engine.scheduling.draft_length import Acceptance, DraftLength
from llmk.engine.wire.plugin_calls import SPECULATOR, Call, is_distrusted, is_interrupt
from llmk.planning.choices.speculation import HOST, host_speculator, speculation_of

if TYPE_CHECKING:
    from llmk.api import Speculator
    from llmk.engine.cache.block_cache import BlockCache
    from llmk.engine.scheduling.issued_step import IssuedStep
    from llmk.engine.scheduling.sequence import Sequence
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)

_WORTH_WAITING = 1.0
"""Accepted drafts per step from which a sequence waits for its last token: the next step that it could have had
meanwhile yields one."""
_GAIN_WEIGHT = 0.2
"""Of the latest attempt in what drafts gain."""
_GUESSES = 16
"""Tokens after which a sequence that does not wait is tried again, without verifying anything."""


class SequenceDrafts:
    """What is known of drafts for one sequence.

    Attributes:
        acceptance: how often they were accepted.
        gain: accepted drafts per attempt, of late; attempts that found nothing to draft count too.
        guess, guessed_at: drafts that are compared with what comes after so many tokens, rather than verified.
        passed: whether the sequence was last issued without an attempt.
        forced: the tokens that its grammar alone allows next.
    """

    __slots__ = ("acceptance", "forced", "gain", "guess", "guessed_at", "passed")

    def __init__(self, gain: float) -> None:
        self.acceptance = Acceptance()
        self.gain = gain
        self.guess: list[int] = []
        self.guessed_at = 0
        self.passed = False
        self.forced: list[int] = []


class Drafting:
    """Drafts for the sequences of one scheduler.

    A speculator on the host needs to know a sequence's last token. Where steps are in flight, a sequence waits for it
    as long as that gains more than the step that it misses; else it goes on without drafts, and what would have been
    drafted is compared with its tokens now and then. Without a speculator on the host, the device drafts inside the
    step.

    Where the host drafts, a sequence with a grammar drafts what that forces, and where that is nothing, what the
    speculator proposes.

    A speculator that raises, or returns something other than token ids, is logged with its traceback, and nothing is
    drafted from then on; ``failures`` counts it.

    With ``host_lengths``, attention is planned on the host: a sequence waits until it is known how many of its drafts
    were accepted. With ``tails``, the model has recurrent states, which take in accepted drafts with the next step.
    """

    def __init__(
        self,
        length: DraftLength,
        vocab_size: int,
        speculator: Speculator | None,
        *,
        id: str = "",
        wheel: str = "",
        host_lengths: bool = False,
        tails: bool = False,
    ) -> None:
        self.length = length
        self.on_host = speculator is not None
        self.failures = 0
        self._host_lengths = host_lengths
        self._tails = tails
        self._vocab_size = vocab_size
        self._speculator = speculator
        self._id, self._wheel = id, wheel
        self._chosen = 0
        self._gain = _WORTH_WAITING
        self._failed = bool(id) and is_distrusted(id)

    @classmethod
    def load(cls, boot: Boot) -> Drafting | None:
        """What drafts by the plan of ``boot``; ``None`` where nothing does.

        Raises:
            ConfigError: for a model, or a number of processes, that drafts are not possible with.
            PluginError: where the speculator can't be made.
        """
        choice, plan = speculation_of(boot.plan), boot.plan
        if choice is None:
            return None
        if lacking := [facts.site for facts in boot.facts.recurrent if not facts.inputs]:
            sites = ", ".join(lacking)
            what = f"{choice.id} drafts tokens, which recurrent layers ({sites}) can't take back: they name no inputs"
            raise ConfigError(what, hint="leave speculation.use empty for this model")
        if choice.kind != HOST and plan.pipeline > 1:
            what = f"{choice.id} drafts on the device, where each of {plan.pipeline} stages knows its own tokens alone"
            raise ConfigError(what, hint="set parallel.pipeline = 1, or name a speculator of the host")
        specs = {found.spec.id: found.spec for found in boot.registry.of(KernelSpec)}
        host_lengths = any(
            piece.id in specs and specs[piece.id].host_lengths for each in plan.all_choices() for piece in each.pieces
        )
        length, (piece,) = DraftLength(boot.settings.config.speculation.num_drafts), choice.pieces
        wheel = f"{piece.distribution} {piece.version}"
        made = host_speculator(boot) if choice.kind == HOST else None
        how = {"host_lengths": host_lengths, "tails": bool(boot.facts.recurrent)}
        return cls(length, boot.facts.vocab_size, made, id=piece.id, wheel=wheel, **how)

    def issue(self, step: IssuedStep, ready: list[Sequence], room: int, cache: BlockCache, num_running: int) -> None:
        """Issues one token for each of ``ready``, and at most ``room`` drafts in all.

        Drafts take no block that one of ``num_running`` sequences may need soon, and delay that blocks are given back:
        so there are none where few blocks are free.
        """
        if ready and not self._failed:
            self._chosen = self.length.choose(len(ready))
        spare = num_running * len(cache.groups)
        for sequence in ready:
            left = sequence.limit - len(sequence.tokens) - sequence.num_pending - 1
            is_free = sequence.request.returns == "tokens" and cache.num_free >= spare
            count, drafts = self._draft(sequence, min(room, left) if is_free else 0)
            end = sequence.num_computed + 1
            if end + count > sequence.tables.capacity:
                cache.extend(sequence.tables, end + count, spare=spare)
                count = min(count, sequence.tables.capacity - end)
            room -= count
            step.issue(sequence, 1 + count, count, drafts[:count])
            sequence.num_late = 0

    def settle(self, sequence: Sequence, num_drafts: int, accepted: int, is_running: bool) -> None:
        """Corrects a sequence's bounds, now that the first ``accepted`` of ``num_drafts`` drafts were. ``is_running``:
        it has not been preempted since."""
        sequence.num_pending -= num_drafts
        sequence.num_uncertain -= num_drafts
        if is_running:
            sequence.num_computed -= num_drafts - accepted
            if self._tails and sequence.num_pending == 1:  # no step was issued since
                sequence.num_late = accepted
        own = self._of(sequence)
        self.length.observe(num_drafts, accepted, own.acceptance)
        self._learn(own, accepted)

    def waits(self, sequence: Sequence) -> bool:
        """Whether a sequence whose last token is still being computed should wait for it, to draft."""
        if self._host_lengths and sequence.num_uncertain:
            return True
        return self.on_host and self._chosen > 0 and self._of(sequence).gain >= _WORTH_WAITING

    def follow(self, sequence: Sequence) -> None:
        """Takes note of new tokens of a sequence, and of what its grammar forces behind them. Raises what that
        raises."""
        own = self._of(sequence)
        if sequence.grammar is not None and self.on_host and not self._failed:
            own.forced = list(takewhile(self._is_token, sequence.grammar.forced()))
        if not own.passed or self._failed:
            return
        known = len(sequence.tokens)
        if own.guess and known >= own.guessed_at + len(own.guess):
            found = sequence.tokens[own.guessed_at : own.guessed_at + len(own.guess)]
            equal = [draft == token for draft, token in zip(own.guess, found, strict=True)]
            accepted = equal.index(False) if False in equal else len(equal)
            self.length.observe(len(equal), accepted, own.acceptance)
            self._learn(own, accepted)
            own.guess = []
        elif not own.guess and known >= own.guessed_at + _GUESSES:
            own.guess, own.guessed_at = self._propose(sequence, self.length.most), known
            if not own.guess:
                self._learn(own, 0)

    def leave(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""
        if self._speculator is None or sequence.drafts is None or self._failed:
            return
        try:
            with self._call(sequence.id):
                self._speculator.leave(sequence.id)
        except BaseException as error:
            self._give_up(error)

    def _draft(self, sequence: Sequence, most: int) -> tuple[int, list[int]]:
        """How many tokens to draft for a sequence in this step, ``most`` or fewer; and which, if the host drafts."""
        own = self._of(sequence)
        own.passed = self.on_host and sequence.num_pending > 0
        if sequence.grammar is not None and not self.on_host:
            return 0, []  # its masks are filled on the host
        most = min(most, self.length.choose_for(own.acceptance, self._chosen))
        if most < 1 or own.passed:
            return 0, []
        if not self.on_host:
            return most, []
        drafts = self._propose(sequence, most)
        if not drafts:
            self._learn(own, 0)
        return len(drafts), drafts

    def _of(self, sequence: Sequence) -> SequenceDrafts:
        if sequence.drafts is None:
            sequence.drafts = SequenceDrafts(self._gain)
        return sequence.drafts

    def _learn(self, own: SequenceDrafts, accepted: int) -> None:
        own.gain += _GAIN_WEIGHT * (accepted - own.gain)
        self._gain += _GAIN_WEIGHT / 4 * (accepted - self._gain)

    def _propose(self, sequence: Sequence, most: int) -> list[int]:
        if self._speculator is None or self._failed:
            return []
        if forced := self._of(sequence).forced[:most]:
            return forced
        try:
            with self._call(sequence.id):
                drafts = list(self._speculator.propose(sequence.id, sequence.tokens, most))[:most]
            for draft in drafts:
                if not self._is_token(draft):
                    raise ValueError(f"propose() returned {draft!r}, which is not a token id below {self._vocab_size}")
            return drafts
        except BaseException as error:
            self._give_up(error)
            return []

    def _is_token(self, draft: object) -> bool:
        return type(draft) is int and 0 <= draft < self._vocab_size

    def _call(self, request: str) -> Call:
        return Call(SPECULATOR, self._id, self._wheel, request)

    def _give_up(self, error: BaseException) -> None:
        if is_interrupt(error):
            raise error
        self._failed, self._chosen = True, 0
        self.failures += 1
        name = f"{self._id} of {self._wheel}" if self._wheel else self._id
        logger.error(
            "the speculator %s failed (%s); requests go on without drafts until the engine is restarted",
            name, describe(error), exc_info=error,
        )  # fmt: skip
