"""What the scheduler asks the servers, and what it makes of their answers, message by message."""

from windlass._wire import messages as m
from windlass._wire.effects import Received, Send
from windlass.scheduler.state import SchedulerState
from windlass.types import MANAGER, SERVER, WORKER, Incarnation, KeyId, Node

HEAD, ME, NEXT = Incarnation(1), Incarnation(10), Incarnation(11)
KEY, OTHER = KeyId(1), KeyId(2)
WORK = m.Workload(name="work", size=3, batch_size=1, epochs=1, step_batches=0)


class Scene:
    """One server, with one shard of one key, and one worker."""

    def __init__(self):
        self.state = SchedulerState({})
        self.generation(1, ME)

    def generation(self, number, *workers):
        nodes = tuple(
            Node(name=f"node-{who}", role=role, incarnation=who, rank=0, pid=1, addresses=())
            for who, role in ((HEAD, SERVER), *((who, WORKER) for who in workers))
        )
        return self.hear(MANAGER, m.Membership(term=2, number=number, nodes=nodes, reason="test"))

    def hear(self, peer, message):
        return [one.message for one in self.state.handle(Received(peer, message), 0.0) if isinstance(one, Send)]

    def take(self, request, *, done=(), held=(), keys=(KEY,)):
        return self.hear(ME, m.Take(request=request, workload=WORK, done=done, held=held, keys=keys))

    def tell(self, ask, *counted):
        """The server says that it counts these batches."""
        self.hear(HEAD, m.Tallied(ask=ask, key=KEY, shard=0, num_shards=1, floor=0, above=counted))
        return self.hear(HEAD, m.Tallied(ask=ask, key=KeyId(0), shard=-1, num_shards=1, floor=0, above=()))


def test_an_answer_about_some_batches_that_comes_when_all_are_done_does_not_end_the_epoch():
    scene = Scene()
    scene.take(1, held=(0,))
    doubts, granted = scene.tell(1, 0)  # a manager before this one gave it out; does it count everywhere?
    assert (doubts.ask, granted.batches) == (2, (1,))
    [granted] = scene.take(2, done=(0, 1))
    assert granted.batches == (2,)
    assert scene.take(3, done=(2,)) == []
    [asked] = scene.tell(2, 0, 2)  # of the first one all is well, but nobody asked about the others
    assert isinstance(asked, m.Tally)
    [granted] = scene.tell(asked.ask, 0, 2)
    assert granted.batches == (1,)
    [asked] = scene.take(4, done=(1,))
    [granted] = scene.tell(asked.ask, 0, 1, 2)
    assert granted.is_over


def test_an_answer_about_some_keys_that_comes_when_all_is_done_does_not_end_the_epoch():
    scene = Scene()
    scene.take(1, held=(0, 1, 2))
    [doubts] = scene.tell(1, 0, 1, 2)
    assert doubts.keys == (KEY,)
    assert scene.take(2, done=(0, 1, 2), keys=(KEY, OTHER)) == []
    [asked] = scene.tell(doubts.ask, 0, 1, 2)
    assert asked == m.Tally(ask=3, workload="work", keys=(KEY, OTHER))


def test_what_servers_count_already_is_not_given_out_to_who_has_pushed_nothing_yet():
    """After a load, say, or under another manager."""
    scene = Scene()
    scene.take(1, keys=())
    doubts, granted = scene.tell(1, 0, 1)
    assert (doubts.keys, granted.batches) == ((KEY,), (2,))
    assert scene.tell(doubts.ask, 0, 1) == []
    [asked] = scene.take(2, done=(2,))
    [granted] = scene.tell(asked.ask, 0, 1, 2)
    assert granted.is_over


def test_an_epoch_does_not_end_by_the_word_of_servers_alone():
    """Who pushed may have died between two keys, and of the second nobody knows: one batch is done again, and whoever
    does it tells of both."""
    scene = Scene()
    scene.take(1, keys=())
    [doubts] = scene.tell(1, 0, 1, 2)
    [asked] = scene.tell(doubts.ask, 0, 1, 2)
    [granted] = scene.tell(asked.ask, 0, 1, 2)
    assert granted.batches == (0,)
    [asked] = scene.take(2, done=(0,), keys=(KEY, OTHER))
    assert asked.keys == (KEY, OTHER)


def test_work_that_is_pushed_to_no_key_any_more_ends():
    scene = Scene()
    scene.take(1, keys=())
    [doubts] = scene.tell(1, 0, 1, 2)
    [asked] = scene.tell(doubts.ask, 0, 1, 2)
    scene.tell(asked.ask, 0, 1, 2)
    [asked] = scene.take(2, done=(0,), keys=())
    [granted] = scene.tell(asked.ask, 0, 1, 2)
    assert granted.is_over


def test_who_may_enter_because_somebody_died_is_told_in_which_generation_that_one_is_gone():
    """The servers may hear of the death later than the worker hears that it may enter."""
    scene = Scene()
    scene.take(1)
    [granted] = scene.tell(1)
    assert granted.batches == (0,)
    scene.generation(2, ME, NEXT)
    [granted] = scene.hear(NEXT, m.Take(request=1, workload=WORK))
    assert (granted.batches, granted.may_enter) == ((), False)
    assert scene.hear(NEXT, m.Take(request=2, workload=WORK, is_outside=True)) == []
    told = scene.generation(3, NEXT)
    assert [one for one in told if isinstance(one, m.Granted)] == [
        m.Granted(request=2, keys=(KEY,), may_enter=True, term=2, number=3)
    ]


def test_a_late_copy_of_a_question_takes_nothing_from_the_next_one():
    scene = Scene()
    scene.take(1)
    [granted] = scene.tell(1)
    assert granted.batches == (0,)
    [granted] = scene.take(2, done=(0,))
    assert (granted.request, granted.batches) == (2, (1,))
    assert scene.take(1, held=(0,)) == []  # on a link that was slow
    [granted] = scene.take(3, done=(1,))
    assert (granted.request, granted.batches) == (3, (2,))
