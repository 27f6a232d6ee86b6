"""A host: an actor that holds shards of an index, and asks the other hosts of its node along with itself.

A node has as many hosts as it offers processors, or fewer. Callers send a question to one host of each node, which puts
together what all of them tell, so that a caller's work grows with the nodes, and not with the shards.
"""

from __future__ import annotations

import itertools
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import HEALTH, Actor, SilentError, get, get_from, wait_for
from relevance_gen.cluster.crowd import Crowd
from relevance_gen.cluster.parts import Recipe
from relevance_gen.cluster.shard import Contribution, OutdatedError, Shard
from relevance_gen.errors import BusyError, ClusterError
from relevance_gen.index import array_file
from relevance_gen.index.segment import Statistics
from relevance_gen.quota import Quota
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.scorers import Scorers
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName

_MAKING: Final = "making"
_ASKING: Final = "asking"
_MOST_ASKED: Final = 64
"""Questions that a host works at, or that wait in it for the other hosts of its node; more are refused."""
_REFUSING: Final = 8
"""Threads that are left to refuse them."""
_SILENT_S: Final = 2.0
"""Another host of the node that has not answered a ping for so long is not waited for."""
_COPIED_BYTES: Final = 8 << 20
"""What one call fetches of a shard that is copied."""
_N_PIECES: Final = 4
_PIECE_BYTES: Final = 64 << 10
"""An answer comes in pieces: Ray sends what is below 100 KiB along with its reply, and stores the rest, from where
fetching it takes longer than a question does."""


class Host(Actor):
    """Holds some shards of one index. A shard is made by one call at a time; questions are answered meanwhile.

    No other host of the index has its number.
    """

    groups: ClassVar[dict[str, int]] = {HEALTH: 2, _MAKING: 1, _ASKING: _MOST_ASKED + _REFUSING}

    def __init__(self, number: int, weighting: WeightingName, counter: TokenCounter) -> None:
        self._number = number
        self._made_with = weighting, counter
        self._shards: dict[int, Shard] = {}
        self._others: dict[int, Any] = {}
        self._crowd = Crowd(weighting)
        self._asked = Quota(_MOST_ASKED)

    def meet(self, hosts: Mapping[int, Any]) -> None:
        """Take note of the hosts of this node, by their numbers."""
        self._others |= hosts

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Answer, and let go of what is of no use any more: nothing else comes so regularly."""
        for shard in [*self._shards.values()]:
            shard.let_go()

    # ── Shards ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @ray.method(concurrency_group=_MAKING)
    def build(self, shard: int, recipe: Recipe) -> Contribution:
        """Make a shard by its recipe, and hold it under this number."""
        self._shards[shard] = made = Shard(*self._made_with)
        return made.build(recipe)

    @ray.method(concurrency_group=_MAKING)
    def take(self, shard: int, twin: Any) -> Contribution:
        """Copy a shard from another host that holds it, piece by piece into a file that is mapped, and hold it, too."""
        self._shards[shard] = made = Shard(*self._made_with)
        try:
            sizes = get_from(twin, twin.call.remote(shard, "copy"))
            n_bytes = sum(map(array_file.padded, sizes))
            with tempfile.TemporaryFile() as file:
                for start in range(0, n_bytes, _COPIED_BYTES):
                    file.write(
                        get_from(
                            twin, twin.call.remote(shard, "piece", start, start + _COPIED_BYTES)
                        )
                    )
                if file.tell() < n_bytes:
                    raise SilentError("it has another state now")
                return made.take(array_file.map_file(file), sizes)
        except (RayActorError, SilentError) as error:
            raise ClusterError(f"the replica that was being copied is gone: {error}") from None

    @ray.method(concurrency_group=_MAKING)
    def cut(self, shard: int, at: int, rest: int) -> tuple[Contribution, Contribution]:
        """Cut a shard as `Shard.cut` does, and hold the chunks from a position on under another number."""
        self._shards[rest] = made = Shard(*self._made_with)
        return self._shards[shard].cut(at, made)

    def drop(self, shard: int) -> None:
        """Hold a shard no more."""
        self._shards.pop(shard, None)
        self._crowd.forget()

    def call(self, shard: int, verb: str, *args: Any) -> Any:
        """Return what a method of a shard returns."""
        return getattr(self._shards[shard], verb)(*args)

    def adopt(self, shards: Sequence[int], epoch: int, statistics: Statistics) -> None:
        """Have shards adopt their last changes, as `Shard.adopt` does."""
        for shard in shards:
            self._shards[shard].adopt(epoch, statistics)

    # ── Questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    @ray.method(concurrency_group=_ASKING, num_returns=_N_PIECES)
    def ask(self, whom: bytes, question: bytes) -> list[bytes]:
        """Return what a function tells of shards of this node, all together, in pieces for `whole`.

        Two things are asked for, pickled: an epoch, and the numbers of the shards by the number of the host that is to
        be asked for them. The question is four things, pickled: the function, which takes `Scorers` first; its other
        arguments, and those by name; and a function that puts together what several hosts tell. All is pickled here,
        for Ray sends bytes as they are, and takes longer for anything else.

        Instead of an answer comes an error, which `whole` raises: an OutdatedError where that state is forgotten, or
        one of the hosts does not have a shard, is dead or is silent; a BusyError where one works at too many questions.
        """
        busy = BusyError(
            f"a process of the cluster works at {_MOST_ASKED} questions already: ask again later"
        )
        try:
            with self._asked.acquired(refusal=lambda: busy):
                epoch, shards = pickle.loads(whom)  # noqa: S301 from a process of the cluster
                answer = self._answer(epoch, shards, question)
        except (OutdatedError, RayActorError, SilentError):
            answer = _pickled(OutdatedError())
        except BusyError as error:
            answer = _pickled(error)
        size = max(_PIECE_BYTES, -(-len(answer) // _N_PIECES))
        return [answer[size * number : size * (number + 1)] for number in range(_N_PIECES)]

    def _answer(self, epoch: int, shards: Mapping[int, Sequence[int]], question: bytes) -> bytes:
        try:
            others = [
                (self._others[host], {host: some})
                for host, some in shards.items()
                if host != self._number
            ]
            here = [self._shards[shard].scorers(epoch) for shard in shards.get(self._number, ())]
        except KeyError:
            raise OutdatedError from None
        asked = [
            (handle, handle.ask.remote(pickle.dumps((epoch, some)), question))
            for handle, some in others
        ]
        function, args, kwargs, merge = pickle.loads(question)  # noqa: S301 from a process of the cluster
        told = [function(self._scorers(here), *args, **kwargs)] if here else []
        for handle, pieces in asked:
            wait_for(handle, pieces[0], _SILENT_S)
            told.append(whole(get(pieces)))
        return _pickled(merge(told) if len(told) > 1 else told[0])

    def _scorers(self, of_shards: Sequence[Sequence[SegmentScorer]]) -> Scorers:
        every = [*itertools.chain.from_iterable(of_shards)]
        return Scorers(self._crowd.fewer(every) if len(of_shards) == len(self._shards) else every)


def _pickled(answer: Any) -> bytes:
    """Pickle an answer; only metadata of classes that a caller made needs what takes `cloudpickle` twice as long."""
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever these raise
        pickled: bytes = cloudpickle.dumps(answer)
        return pickled


def whole(pieces: Sequence[bytes]) -> Any:
    """Return the answer that comes in some pieces, or raise the error that comes instead."""
    answer = pickle.loads(b"".join(pieces))  # noqa: S301 from a process of the cluster
    if isinstance(answer, OutdatedError | BusyError):
        raise answer
    return answer
