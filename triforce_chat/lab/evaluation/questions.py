"""Short everyday questions: what a model must still be able to answer after it learnt something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from triforce_chat.lab.evaluation.tasks import holds

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s*\S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the answers that count as right, any of them in any place of what is said."""

    text: str
    accepts: tuple[str, ...] = ()
    passes: Callable[[str], bool] | None = None  # decides where no list of words can

    def right(self, said: str) -> bool:
        """Whether ``said`` answers the question: whole words, whatever their case.

        A number must be the first or the last that is said: on the way to a result there may be others.
        """
        if self.passes is not None:
            return self.passes(said)
        numbers = [float(number) for number in _NUMBER.findall(said)]
        return any(
            float(each) in (numbers[:1] + numbers[-1:]) if each.isdigit() else holds(said, each)
            for each in self.accepts
        )


def items(least: int) -> Callable[[str], bool]:
    """At least so many things: list items, lines, or parts between commas."""

    def passes(said: str) -> bool:
        lines = [line for line in said.splitlines() if line.strip()]
        parts = [part for part in re.split(r",|;|\band\b", said) if part.strip()]
        return max(len(_ITEM.findall(said)), len(lines), len(parts)) >= least

    return passes


def sentences(least: int, about: str) -> Callable[[str], bool]:
    """At least so many sentences, one of which names its subject."""

    def passes(said: str) -> bool:
        ends = re.findall(r"\w[.!?](?:\s|$)", said)
        return len(ends) >= least and about in said.lower()

    return passes


QUESTIONS = (
    Question("What is the capital of France?", ("Paris",)),
    Question("What is the capital of Italy?", ("Rome",)),
    Question("What is the capital of Japan?", ("Tokyo",)),
    Question("What is the capital of Egypt?", ("Cairo",)),
    Question("What is the capital of Spain?", ("Madrid",)),
    Question("Which ocean lies between Europe and America?", ("Atlantic",)),
    Question("On which continent is Kenya?", ("Africa", "African")),
    Question("In which country is the city of Berlin?", ("Germany",)),
    Question("Which language is spoken in Brazil?", ("Portuguese",)),
    Question("What is 2 + 3?", ("5", "five")),
    Question("What is 10 minus 4?", ("6", "six")),
    Question("What is 3 times 4?", ("12", "twelve")),
    Question("What is half of 20?", ("10", "ten")),
    Question("What is 7 + 8?", ("15", "fifteen")),
    Question("How many legs does a spider have?", ("8", "eight")),
    Question("How many days are in a week?", ("7", "seven")),
    Question("How many months are in a year?", ("12", "twelve")),
    Question("How many minutes are in an hour?", ("60", "sixty")),
    Question("Which number comes after nine?", ("10", "ten")),
    Question("What is the opposite of hot?", ("cold",)),
    Question("What is the opposite of big?", ("small", "little", "tiny")),
    Question("What is the opposite of day?", ("night",)),
    Question(
        "Give a word that means the same as happy.", ("joyful", "glad", "cheerful", "content", "delighted")
    ),
    Question("What is the plural of the word child?", ("children",)),
    Question("What is the past tense of the verb go?", ("went",)),
    Question("What colour is the sky on a clear day?", ("blue",)),
    Question("What color is grass?", ("green",)),
    Question("Which colour do you get when you mix blue and yellow?", ("green",)),
    Question("What color is a ripe banana?", ("yellow",)),
    Question("Which day comes after Monday?", ("Tuesday",)),
    Question("Which month comes after March?", ("April",)),
    Question("In which season does snow fall?", ("winter",)),
    Question("What is the French word for water?", ("eau", "l'eau")),
    Question("How do you say hello in Spanish?", ("hola",)),
    Question("What is the German word for house?", ("Haus",)),
    Question("Complete the proverb: An apple a day keeps the ...", ("doctor",)),
    Question("Complete the proverb: Practice makes ...", ("perfect",)),
    Question("At what temperature in degrees Celsius does water freeze?", ("0", "zero")),
    Question("Which planet do we live on?", ("Earth",)),
    Question("What gas do people need to breathe?", ("oxygen",)),
    Question("What do bees make?", ("honey",)),
    Question("Which star is closest to the Earth?", ("Sun",)),
    Question("What is frozen water called?", ("ice",)),
    Question("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    Question("Hello! How are you today?", ("hello", "hi", "well", "good", "great", "fine", "help", "assist")),
    Question("List three fruits.", passes=items(3)),
    Question("Name four animals that live on a farm.", passes=items(4)),
    Question("Write two sentences about the sea.", passes=sentences(2, "sea")),
)
