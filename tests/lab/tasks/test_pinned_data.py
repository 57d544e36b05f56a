"""Pins on the template data: seeded training and evaluation depend on every text and on its position.

The hashes were taken when the data were still Python tuples. A changed hash means that the same seed gives other
facts, and that recorded results cannot be compared with new ones.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from triforce_chat.lab.tasks import reports as report_data
from triforce_chat.lab.tasks import wordings
from triforce_chat.lab.tasks.composed import COMPOSED
from triforce_chat.lab.tasks.facts import make_facts
from triforce_chat.lab.tasks.fillers import FILLERS
from triforce_chat.lab.tasks.reports import reports
from triforce_chat.lab.tasks.template import VARIED, WRITTEN
from triforce_chat.lab.training.everyday import everyday
from triforce_chat.lab.training.requests import QUESTIONS, SUMMARIES

KINDS = ("number", "name", "place", "date", "object", "two-step")
HASHES = {
    "written number": "0367a082671cec64f86f70d3c2f8802c1418f4d6f6c241d730565a15899d35d9",
    "written name": "ff90406cc23a6fc48c378fa69ccae8cb07a414528431a156f4c7784ac336df1f",
    "written place": "fe2f6a292637be7bc2beb50fcb0e8f5fef3d0d28f04b1fc0a7701a17353a343a",
    "written date": "0ffd4b1deb6d055307491196c3fc0ae4435c406d93afa128ea4f4d2d0ab1a546",
    "written object": "cdc79d590bcbe171e1849faa20560908b5c01872134b538947f95079e2b7d7fb",
    "written two-step": "f05e2e3b31c057b18131c462ac0a0b5b7f09828e916cf0e3e0d53ad4d035f545",
    "varied number": "5ce7c098d1a0d0f518ffa626305b6845dd0d3488866eaf79a38ead44951343c4",
    "varied name": "d4e6626d1b9c34cb0b952cf7a74484e468ad0152f50cdf106fafa820395b4e76",
    "varied place": "cdec3b445491e5b5b7e5dd59db0cee331b0a965560b7ce2b3ddb58e5ac2d7d03",
    "varied date": "c64a171fa2cfcd4990089b0153b1a1779bd54a96d768b7c6035625dca41c4e76",
    "varied object": "ec2f0c69563cb6d6bf7489a6e1fbd9ba31c46bf2547a325d9c61c762925f9555",
    "varied two-step": "d26b72ca0b77e7f966287ede27b602178c0b61b644f001d3d66cc5e59ee62d9a",
    "composed number": "c71c21a606ae77a1947a1886dae6c31fbd196e346e323e118be108761b030bba",
    "composed name": "2d49114f7fad1487f00ff1a261798b52341d6012eff02e54132eb97031264299",
    "composed place": "5adb99453460eff6a59f6a04fde274b301a400be454efd935cf916e166c55af5",
    "composed date": "cf2527f9387f3b94514c6bd93017d5dfa5ea4cdacffbde982bbfe2734ca19240",
    "composed object": "aba59fb3a680c21d375323343bbd9bf7bb7815c56da8c5b9191d9124a5a88061",
    "composed two-step": "d15a8ffa72814e2f27759dd812f94f7c58daf1545111ed4bdf1c43c806b62213",
    "report aspects": "bb8b2fbe58595b83c928eae1c4edd0963e9cf534ea33939a07d51a606aa22840",
    "report texts": "bd6704f1bd1cc7acd7bbeb1b9ba23307bf437ad39c5aad6c5bd8e5bea271a0e6",
    "wordings": "d795a34d16a834fff9538f995c70ea8a3f224164cc91150ecd41172d2ce77ee0",
    "replies": "64b87575c017a09aea5eadc1980cb8a9270ef905777aa0e336b8cd2ec759ab95",
    "requests": "b5e06f4fab530e761bd8fd7312e1ba39702d394538c77b19070318bf1355c124",
    "everyday": "aeae92dc7ecc2cac85c433f97b56aa3a95422f6d7fbe99e234c7d701e07f2662",
    "fillers train": "adc31e48b31dac50cfe6c2f2dc378861e88846ef3845b66e3bbec86a615a646c",
    "facts train 0": "1157cdfdffe27ab46b473ce328f24682450439ad4d49490f48bd4eaa342b0e4a",
    "facts train 1": "f37dc8a0ba3404d7578f32d543e60657fd3c90583ee8cd2dc0c6a89a0440d7c9",
    "facts train 2": "34ae545b208d8c7265d8673868dd3f6916c958d9d930d09800219b20b74775c7",
    "facts train 3": "d12c6e0677900b93203f221b883174a64163a6a20ce047ba481aee6c58586e29",
    "facts train 4": "e32dd00160218028dbde9e40e027c7beb781743dea406182b9d9973612b3e4ac",
    "fillers test": "f33abe7a63f98ae0edea12f5c30c4424bc16c7891354f43f61b85236a402eca2",
    "facts test 0": "e0ecae8b150a30026faef2a3fdda8c31130fd4d552aee5182ddd20b517181429",
    "facts test 1": "343e79f539b87e0f7f7a3ae57eea2800a8a24d479eae29a1f912f25cf63ce314",
    "facts test 2": "e24448e0be5bbf12ae45f44dc054fe8b6d9daf6e650c0d324f216a2a76e9b4a3",
    "facts test 3": "6fe6d3d834dec83c41e3e855655938fd014fb20b3de242c92529114f422622b9",
    "facts test 4": "ec090587d9e3967d8bf05d15e24e18414702bf4ead011f2940cc0d59044590ad",
    "reports 0": "4055e8530dc3f6a919f1a41f8d94ac675e8341a0145acfe0d50a13b49bcede53",
    "reports 1": "d42aeebae6ff1458ae6532286a5820a200def3a5ffc93875e80227f48265db4d",
    "reports 2": "02b0a6c073fbd92d9a49c5382cad0aa4955cfca8e91414785058cab869bf122f",
}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def plain(templates: Iterable[Any]) -> list[Any]:
    return [[each.sentences, each.about, each.answer, each.questions] for each in templates]


def fact_fields(fact: Any) -> list[Any]:
    return [fact.kind, fact.sentences, fact.question, fact.answer, fact.reply]


def report_fields(report: Any) -> list[Any]:
    return [report.paragraphs, [fact_fields(fact) for fact in (*report.stated, *report.absent)]]


def collect() -> dict[str, Any]:
    """Every pinned value, by name."""
    found: dict[str, Any] = {}
    for name, table in (("written", WRITTEN), ("varied", VARIED), ("composed", COMPOSED)):
        assert tuple(table) == KINDS
        for kind in KINDS:
            found[f"{name} {kind}"] = plain(table[kind])
    found["report aspects"] = plain(report_data.ASPECTS)
    found["report texts"] = [report_data.SUBJECTS, report_data.ASIDES, report_data.HEADINGS]
    found["wordings"] = [wordings.PAGE_QUESTIONS, wordings.OPENINGS, wordings.ASIDES]
    found["replies"] = [wordings.REPLY, wordings.PAGE_REPLY, wordings.TWO_STEP_REPLY, wordings.ABSENT_REPLY]
    found["requests"] = [SUMMARIES, QUESTIONS]
    rng = random.Random(0)
    found["everyday"] = [everyday(rng) for _ in range(20_000)]
    for split in ("train", "test"):
        rng = random.Random(split)
        found[f"fillers {split}"] = [
            [name, [filler.draw(rng, split) for _ in range(2_000)]] for name, filler in FILLERS.items()
        ]
        for seed in range(5):
            facts = make_facts(random.Random(seed), 100, split=split)
            found[f"facts {split} {seed}"] = [fact_fields(fact) for fact in facts]
    for seed in range(3):
        found[f"reports {seed}"] = [report_fields(each) for each in reports(random.Random(seed), 8)]
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return {name: digest(value) for name, value in collect().items()}


def test_every_value_is_pinned(found: dict[str, str]) -> None:
    assert found.keys() == HASHES.keys()


@pytest.mark.parametrize("name", HASHES)
def test_data_are_as_pinned(name: str, found: dict[str, str]) -> None:
    assert found[name] == HASHES[name]
