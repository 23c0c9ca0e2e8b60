"""Each rule finds what it is for, and leaves alone what it is not for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import compares, effects, shape, suites, texts, uses, waiting
from tests.tidy.sources import Source

Rule = Callable[[Source], list[str]]


def complaints(rule: Rule, text: str, path: str = "storage/wal.py") -> int:
    return len(rule(Source(path, text)))


@pytest.mark.parametrize(
    "text",
    [
        "import time\nx = time.time()",
        "import time as t\nx = t.monotonic_ns()",
        "from time import perf_counter\nx = perf_counter()",
        "from time import time as now\nread = now",
        "import datetime\nx = datetime.datetime.now(datetime.UTC)",
        "from datetime import datetime\nx = datetime.utcnow()",
        "from datetime import date as d\nx = d.today()",
        "import random\nx = random.Random(7)",
        "import random\nx = random.choice([1])",
        "import secrets\nx = secrets.token_hex()",
        "from uuid import uuid4\nx = uuid4()",
        "import os\nx = os.urandom(8)",
        "import numpy as np\nx = np.random.default_rng(1)",
        "def f():\n    import time\n    return time.sleep(1)",
    ],
)
def test_a_clock_or_chance_is_found(text: str) -> None:
    assert complaints(effects.clock_or_chance, text) == 1
    assert complaints(effects.clock_or_chance, text, "adapters/clock.py") == 0


@pytest.mark.parametrize(
    "text",
    [
        "from datetime import datetime\nx = datetime(2020, 1, 1)",
        "def f(clock):\n    return clock.time()",
        "import uuid\nx = uuid.UUID(int=1)",
        "def f(random):\n    return random.choice([1])",
        "import stelae.timeout\nx = stelae.timeout.time",
    ],
)
def test_a_clock_by_parameter_is_no_clock(text: str) -> None:
    assert complaints(effects.clock_or_chance, text) == 0


@pytest.mark.parametrize(
    "text, found",
    [
        ("import random\nx = random.Random(seed)", 0),
        ("import random\ndef f(rng: random.Random) -> None: ...", 0),
        ("import random\nx = random.Random()", 1),
        ("import random\nx = random.random()", 1),
    ],
)
def test_sim_draws_from_a_seed_only(text: str, found: int) -> None:
    assert complaints(effects.clock_or_chance, text, "sim/world.py") == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("import threading\nthreading.Thread(target=f).start()", 1),
        ("from concurrent.futures import ThreadPoolExecutor\nx = ThreadPoolExecutor(1)", 1),
        ("import threading\nx = threading.Lock()", 0),
        ("from concurrent.futures import Future\nx: Future[int]", 0),
    ],
)
def test_a_started_thread_is_found(text: str, found: int) -> None:
    assert complaints(effects.threads, text) == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("from concurrent.futures import wait as wait_for\nwait_for([f])", 1),
        ("import concurrent.futures\nx = concurrent.futures.as_completed([f])", 1),
        ("from stelae.storage.log.futures import wait_for\nwait_for([f], 1)", 0),
        ("import asyncio\nx = asyncio.wait([f])", 0),
    ],
)
def test_a_wait_in_the_order_of_addresses_is_found(text: str, found: int) -> None:
    assert complaints(effects.waits_by_address, text) == found
    assert complaints(effects.waits_by_address, text, "spark/tasks.py") == 0


def test_a_sleeping_test_is_found() -> None:
    assert complaints(effects.sleeping_tests, "from time import sleep\ndef test_a():\n    sleep(1)") == 1
    assert complaints(effects.sleeping_tests, "import time\nx = time.monotonic()") == 0


@pytest.mark.parametrize(
    "text, found",
    [
        ("def f(done):\n    return done.result()", 1),
        ("def f(event):\n    event.wait(3)", 1),
        ("async def f(event):\n    await event.wait()", 0),
        ("async def f(task):\n    return task.result()", 1),
        ("def f(result):\n    return result.name", 0),
    ],
)
def test_a_thread_that_waits_is_found(text: str, found: int) -> None:
    assert len(waiting.unlisted_waits([Source("storage/a.py", text)], {})) == found
    assert waiting.unlisted_waits([Source("client/a.py", text)], {}) == []
    reasons = {"storage/a.py:f": "a reason"}
    assert len(waiting.unlisted_waits([Source("storage/a.py", text)], reasons)) == 1 - found


@pytest.mark.parametrize(
    "text, found",
    [
        ("def f(attempts, pause):\n    pause(attempts.delay_s(error))", 2),
        ("async def f():\n    await asyncio.sleep(1)", 1),
        ("def f(session):\n    session._wait_to_repeat(error)", 1),
        ("def f(done):\n    done.wait(1)", 0),
    ],
)
def test_who_tries_again_is_found(text: str, found: int) -> None:
    assert len(waiting.unlisted_repeats([Source("client/a.py", text)], {})) == found
    assert waiting.unlisted_repeats([Source("master/a.py", text)], {}) == []
    reasons = {"client/a.py:f": "a reason"}
    assert len(waiting.unlisted_repeats([Source("client/a.py", text)], reasons)) == (0 if found else 1)


@pytest.mark.parametrize(
    "body, found",
    [
        ("with self._shard.lock:\n            self._run(told())", 1),
        ("with self._mine:\n            if x:\n                self._upkeep.save()", 1),
        ("with self._mine:\n            x = 1\n        self._upkeep.save()", 0),
        ("with self._turn:\n            self._upkeep.save()", 0),
        ("with self._mine:\n            def later():\n                self._upkeep.save()", 0),
    ],
)
def test_waiting_under_a_lock_is_found(body: str, found: int) -> None:
    text = f"class A:\n    def __init__(self):\n        self._mine = Lock()\n    def f(self):\n        {body}\n"
    source = Source("tserver/a.py", text)
    assert len(waiting.waits_under_locks([source], {})) == found
    assert len(waiting.waits_under_locks([source], {"tserver/a.py:A.f": "a reason"})) == 1 - found


@pytest.mark.parametrize(
    "body, found",
    [
        ("async def f(store: Metastore):\n    await store.txn([], [put])", 1),
        ("async def f(store: Metastore):\n    await store.txn((), [put])", 1),
        ("async def f(store: Metastore):\n    await store.txn(compares=[], changes=[put])", 1),
        ("class A:\n    async def f(self):\n        await self._store.txn([], [put])", 1),
        ("async def f(store: Metastore):\n    await store.txn([unchanged], [put])", 0),
        ("async def f(store: OwnStore):\n    await store.txn([], [put])", 0),
        ("async def f(store: ComparedStore | OwnStore):\n    await store.txn([], [put])", 0),
        ("async def f(store: OwnStore | Metastore):\n    await store.txn([], [put])", 1),
        ("async def f(store: own.OwnStore, other: Metastore):\n    await other.txn([], [put])", 1),
        ("async def f(store, fence):\n    await FencedStore(store, fence).txn([], [put])", 0),
        ("async def f(store, held):\n    mine = GuardedStore(store, held)\n    await mine.txn([], [put])", 0),
        ("async def f(store, held):\n    mine, n = GuardedStore(store, held), 1\n    await mine.txn([], [put])", 0),
    ],
)
def test_a_write_that_compares_nothing_is_found(body: str, found: int) -> None:
    assert len(compares.blind_writes([Source("registry/things.py", body)], {})) == found
    assert compares.blind_writes([Source("registry/catalog/things.py", body)], {}) == []


def test_a_reason_for_a_write_that_compares_is_one_too_many() -> None:
    assert len(compares.blind_writes([], {"registry/things.py:f": "once there was one"})) == 1


def test_a_long_module_is_found() -> None:
    assert complaints(shape.too_long, "x = 1\n" * 400) == 0
    assert complaints(shape.too_long, "x = 1\n" * 401) == 1


def test_an_assembly_that_does_more_than_construct_is_found() -> None:
    def sources(*lines: int) -> list[Source]:
        return [Source(f"assembly/m{at}.py", "x = 1\n" * count) for at, count in enumerate(lines)]

    assert shape.swollen_assembly([*sources(200, 299), Source("storage/wal.py", "x = 1\n" * 9)]) == []
    assert len(shape.swollen_assembly(sources(200, 300))) == 1


def test_a_name_with_two_homes_in_a_room_is_found() -> None:
    one = Source("model/a.py", "class Tablet: ...\ndef _private(): ...\ndef split(): ...")
    two = Source("model/keys/b.py", "def _private(): ...\nasync def split(): ...")
    elsewhere = Source("storage/b.py", "def split(): ...")
    same = Source("model/c.py", "@overload\ndef get(): ...\n@overload\ndef get(x): ...\ndef get(x=1): ...")
    assert shape.names_with_two_homes([one, same, elsewhere]) == []
    (complaint,) = shape.names_with_two_homes([one, two, same, elsewhere])
    assert "split has 2 homes (model/a.py:3, model/keys/b.py:2)" in complaint


def test_a_crowded_folder_is_found() -> None:
    twenty = [Source(f"wire/{'abcdefghijklmnopqrstuvwxyz'[n]}.py", "") for n in range(20)]
    others = [Source("wire/__init__.py", ""), Source("wire/frames/a.py", "")]
    assert shape.crowded_folders([*twenty, *others]) == []
    (complaint,) = shape.crowded_folders([*twenty, *others, Source("wire/z.py", "")])
    assert complaint.startswith("wire: 21 modules")


def test_a_package_that_was_not_made_is_found() -> None:
    wal = [Source("storage/wal_replay.py", ""), Source("storage/wal_segments.py", "")]
    innocent = [Source("storage/wal.py", ""), Source("storage/in_step.py", ""), Source("storage/log/wal_a.py", "")]
    assert shape.unmade_packages([wal[0], *innocent], {}) == []
    (complaint,) = shape.unmade_packages([*wal, *innocent], {})
    assert "wal_replay, wal_segments" in complaint
    assert shape.unmade_packages([*wal, *innocent], {"storage/wal": "a reason"}) == []
    assert len(shape.unmade_packages(innocent, {"storage/wal": "a reason"})) == 1


def test_a_name_that_nothing_uses_is_found() -> None:
    defines = Source("model/a.py", "class Dead: ...\nclass Alive: ...\ndef again():\n    return again()\n")
    imports = Source("storage/b.py", "from stelae.model.a import Alive\nx = Alive()\n")
    by_module = Source("wire/c.py", "from stelae.model import a as names\nx = names.Dead\n")
    own = Source("model/d.py", "def used(): ...\ndef _private(): ...\nx = used\n")
    commands = Source("cli/app.py", "@app.command()\ndef show(): ...\n")
    sim = Source("sim/clock.py", "class SimClock: ...\n")
    innocent = [imports, own, commands, sim]
    found = uses.unused_names([defines, *innocent], {})
    assert ["Dead" in found[0], "again" in found[1], len(found)] == [True, True, 2]
    assert len(uses.unused_names([defines, *innocent, by_module], {})) == 1
    assert len(uses.unused_names([defines, *innocent], {"stelae.model.a.Dead": "a reason"})) == 1
    assert len(uses.unused_names(innocent, {"stelae.model.d.used": "a reason"})) == 1


def test_a_name_that_users_import_is_used() -> None:
    row = Source("client/api/rows.py", "class Row: ...\n")
    load = Source("spark/loading/loads.py", "def load(): ...\n")
    lazily = Source("__init__.py", '_HOMES = {"Row": "stelae.client.api.rows"}\ndef open(): ...\n')
    of_spark = Source("spark/__init__.py", '_HOMES = {"load": "loading.loads"}\n')
    assert len(uses.unused_names([row, load], {})) == 2
    assert uses.unused_names([row, load, lazily, of_spark], {}) == []


def test_a_method_that_nothing_uses_is_found() -> None:
    store = Source(
        "storage/a.py",
        "class Store:\n"
        "    def read(self): ...\n"
        "    def dead(self): return self.dead()\n"
        "    @property\n    def size(self): ...\n"
        "    def named(self): ...\n"
        "    def _inner(self): ...\n",
    )
    user = Source("tserver/b.py", "x.read()\ncall(x, 'named')\n")
    api = Source("client/api/c.py", "class Table:\n    def rename(self): ...\n")
    found = uses.unused_methods([store, user, api], {})
    assert ["Store.dead" in found[0], "Store.size" in found[1], len(found)] == [True, True, 2]
    assert len(uses.unused_methods([store, user], {"storage.a.Store.dead": "a reason"})) == 1
    assert uses.unused_methods([store, user], {"storage.a.Store": "a reason"}) == []
    assert len(uses.unused_methods([user], {"storage.a.Store": "a reason"})) == 1


def test_an_adapter_without_a_suite_is_found() -> None:
    port = Source(
        "ports/files.py",
        "class File(Protocol):\n    def read(self) -> bytes: ...\n"
        "class Files(Protocol):\n    @property\n    def place(self) -> str: ...\n    def open(self) -> File: ...\n",
    )
    opened = "class LocalFile:\n    def read(self): ...\n"
    whole = "class LocalFiles:\n    def __init__(self): self.place = ''\n    def open(self): ...\n"
    half = "class Half:\n    def open(self): ...\n"
    adapters = [Source("adapters/local.py", opened + whole + half)]
    (complaint,) = uses.unproven_adapters(adapters, [port], [Source("test_files.py", "files = SimFiles()")])
    assert "LocalFiles has all that a Files has" in complaint
    assert uses.unproven_adapters(adapters, [port], [Source("test_files.py", "files = LocalFiles()")]) == []


@pytest.mark.parametrize(
    "text",
    [
        '"""Stored."""',
        'def f():\n    """How many."""',
        'class A:\n    def f(self):\n        """Safe for threads."""',
    ],
)
def test_a_docstring_that_is_a_riddle_is_found(text: str) -> None:
    assert complaints(texts.riddles, f"x = 1\n{text}\n") == 1


@pytest.mark.parametrize(
    "said, found",
    [
        ("While nobody waits for it.", 1),
        ("Until somebody runs the steps.", 1),
        ("For the next frame.", 1),
        ("How many are open now.", 1),
        ("There may be room now.", 1),
        ("The same for one row.", 1),
        ("The same as mutations.", 1),
        ("Of the writes of one call.", 1),
        ("As they are recorded. Under the lock.", 1),
        ("In the order in which they are started.", 1),
        ("Of a table the rows, of a cluster the shards, by their names.", 0),
        ("As `newest`, for one row.", 0),
        ("By server: when it was heard of.", 0),
        ("Whether its answer may still come.", 0),
        ("For the reader: what the frame says, and for whom it was sent.", 0),
    ],
)
def test_a_docstring_that_begins_in_the_middle_is_found(said: str, found: int) -> None:
    assert complaints(texts.riddles, f'def f():\n    """{said}"""\n') == found
    assert complaints(texts.riddles, f'class F:\n    """{said}"""\n') == 0


@pytest.mark.parametrize("text", ['"""Add the record; return its bytes."""', '"""Made by `Files`."""', "# How many."])
def test_a_docstring_that_says_something_is_left_alone(text: str) -> None:
    assert complaints(texts.riddles, text) == 0


def test_a_busy_init_is_found() -> None:
    reexport = '"""A room."""\nfrom stelae.model.ids import TabletId\n'
    assert complaints(shape.busy_init, reexport, "model/__init__.py") == 1
    assert complaints(shape.busy_init, reexport, "__init__.py") == 0
    assert complaints(shape.busy_init, '"""A room."""\n', "model/__init__.py") == 0
    assert complaints(shape.busy_init, "", "model/keys/__init__.py") == 0


def test_a_duplicated_body_is_found() -> None:
    body = "    {0} = []\n    for {1} in rows:\n        {0}.append(encode({1}))\n    return {0}\n"
    one = Source("a.py", "def f(rows):\n    '''Doc.'''\n" + body.format("out", "row"))
    renamed = Source("b.py", "class K:\n    def g(self, rows):\n" + body.format("xs", "r").replace("    ", "        "))
    other = Source("c.py", "def f(rows):\n" + body.format("out", "row").replace("encode", "decode"))
    short = "def f(self, a):\n    self.a = a\n    self.b = a\n"
    assert shape.duplicated_bodies([one, other]) == []
    assert shape.duplicated_bodies([Source("d.py", short), Source("e.py", short)]) == []
    (complaint,) = shape.duplicated_bodies([one, renamed, other])
    assert "a.py:1 f, b.py:2 g" in complaint


def test_swapped_variables_are_another_body() -> None:
    text = "def f(a, b):\n    x = a\n    y = b\n    x -= y\n    return {}\n"
    assert shape.duplicated_bodies([Source("a.py", text.format("x")), Source("b.py", text.format("y"))]) == []


def test_a_bad_room_is_found(tmp_path: Path) -> None:
    room = tmp_path / "wire"
    room.mkdir()
    assert len(shape.bad_room(room)) == 3
    (room / "__init__.py").touch()
    (room / "frames.py").touch()
    (room / "README.md").write_text("line\n" * 61)
    assert len(shape.bad_room(room)) == 1
    (room / "README.md").write_text("line\n" * 60)
    assert shape.bad_room(room) == []


@pytest.mark.parametrize(
    "text",
    [
        "https://py" + "pi.org/simple",
        "see /" + "root/.cache/x",
        "path = '/" + "home/someone/project'",
        "# TO" + "DO later",
        "# FIX" + "ME",
        "<" * 7 + " HEAD",
        "pip install 'stelae" + "[spark]'",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(texts.banned_words("a.md", f"fine\n{text}\n")) == 1


@pytest.mark.parametrize(
    "text", ["bucket/work/x", "$HOME/work/x", "./root/x", "~/work/y", "a workbench", "=" * 12, "'./stelae[s3]'"]
)
def test_an_innocent_word_is_left_alone(text: str) -> None:
    assert texts.banned_words("a.md", text) == []


@pytest.mark.parametrize(
    "text, found",
    [
        ("def helper(): ...", 1),
        ("def test_a(): ...", 0),
        ("class TestA:\n    async def test_b(self): ...", 0),
        ("TestMachine = Machine.TestCase", 0),
    ],
)
def test_a_module_without_tests_is_found(text: str, found: int) -> None:
    assert complaints(suites.without_tests, text, "model/test_a.py") == found
    assert complaints(suites.without_tests, text, "model/helpers.py") == 0


@pytest.mark.parametrize(
    "call, found",
    [
        ("pytest.mark.skip", 1),
        ("pytest.mark.skip()", 1),
        ("pytest.mark.skip(reason='')", 1),
        ("pytest.mark.skipif(condition)", 1),
        ("pytest.mark.xfail(condition)", 1),
        ("pytest.skip()", 1),
        ("pytest.mark.skip(reason='needs a kernel with io_uring')", 0),
        ("pytest.mark.skipif(condition, reason='slow')", 0),
        ("pytest.skip(f'no {tool}')", 0),
        ("pytest.mark.parametrize('a', [1])", 0),
    ],
)
def test_a_silent_skip_is_found(call: str, found: int) -> None:
    assert complaints(suites.silent_skips, f"import pytest\nx = {call}") == found
