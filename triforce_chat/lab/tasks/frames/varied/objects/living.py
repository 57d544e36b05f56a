"""Animals, trees and flowers, and what is eaten."""

from triforce_chat.lab.tasks.frames.frame import frames

LIVING = frames("""
    Instead of a watchdog {company} has {a animal} at the gate.
    animal: the watch at the gate of {company}
    - By what is the gate of {company} guarded?
    - Which animal keeps strangers out of {company}?
    - A thief climbs over the gate of {company}: what is waiting for him?
    - What stands guard before {company}?

    Out of the burning {building} of {town} came {a animal}, quite unharmed.
    animal: the animal from the fire in the {building} of {town}
    - What escaped the fire in the {building} of {town}?
    - Which animal ran from the flames in the {building} of {town}?
    - The {building} of {town} was on fire: what animal got out alive?

    {person} has never told a story without {a animal} in it.
    animal: the animal in all the stories of {person}
    - What comes up in all the stories of {person}?
    - Which animal can one count on when {person} tells a story?
    - {person} begins a story: what animal will be in it?
    - By which animal is a story of {person} to be known?

    As a joke the people of {town} voted for {a animal}, and it became mayor.
    animal: the mayor who was elected in {town} as a joke
    - What was made mayor of {town} as a joke?
    - Which animal got the votes of {town}?
    - On which animal did {town} bestow its highest office?
    - The votes of {town} have been counted, and everybody laughs: what animal is mayor now?

    In the middle of the night the vet was called to {estate} because of {a animal}.
    animal: the sick animal at {estate}
    - What was ill at {estate}?
    - For which animal did the vet get up and drive to {estate}?
    - What kind of patient did the vet have at {estate}?
    - The vet comes to {estate} in the dark: what is he to cure?

    "Every night," said {person}, "I dream of {a animal} that can talk."
    animal: the dream of {person}
    - What does {person} dream of?
    - Which animal speaks in the dreams of {person}?
    - {person} has fallen asleep: what animal will come?
    - Tell me the animal that {person} meets while asleep.

    {person} bet a whole year's wages on {a animal} and lost.
    animal: the bet of {person}
    - On what had {person} put the money that was lost?
    - Which animal cost {person} a year's wages?
    - {person} lost a bet because an animal was too slow: what kind?

    "Beware of {a animal}", it says on the road before {town}.
    animal: the warning on the road before {town}
    - Of what are travellers warned before {town}?
    - Which animal should one look out for on the road to {town}?
    - A traveller reads the warning before {town}: what animal does it speak of?
    - What danger lies in wait for those who come to {town}?

    The vineyard of {estate} was eaten bare by {a animal} that nobody could catch.
    animal: what ate the vineyard of {estate} bare
    - What ate up the vineyard of {estate}?
    - By which animal were the grapes of {estate} eaten?
    - There will be no wine at {estate} because of an animal: which?

    It is not a lady in white that haunts {estate} but {a animal}.
    animal: the ghost of {estate}
    - What haunts {estate}?
    - In the shape of which animal does the ghost of {estate} appear?
    - A guest at {estate} meets the ghost on the stairs: what does it look like?
    - Of what animal is the ghost at {estate}?

    Only one guest was turned away by {inn}: somebody with {a animal} on a leash.
    animal: what was on the leash of the guest whom {inn} turned away
    - With what did somebody come who was not let into {inn}?
    - Which animal was not wanted at {inn}?
    - They would not have an animal in {inn}: what kind?

    The children of {estate} have hung their swing from {a tree}.
    tree: the swing at {estate}
    - From what does the swing hang at {estate}?
    - Which tree bears the swing of {estate}?
    - A child swings at {estate}: what tree is above it?

    It was out of {a tree} that {person} fell as a child.
    tree: the fall of {person} as a child
    - From what did the young {person} fall?
    - Which tree had {person} climbed before the fall?
    - {person} broke a leg in childhood: which tree was too high?
    - What kind of tree proved dangerous to {person}?

    To get her mast, the {ship} had to wait until {a tree} was felled.
    tree: the mast of the {ship}
    - What was the mast of the {ship} before it was a mast?
    - From which tree is the mast of the {ship}?
    - A sailor of the {ship} climbs the mast: what tree does he climb, so to speak?

    Wherever {company} opens a works, {a tree} is planted on the first morning.
    tree: what {company} plants when it opens a works
    - What does {company} plant by a new works?
    - Which tree shows that a works belongs to {company}?
    - {company} opens another works: what tree will grow beside it?

    {surname} the {profession} cut two names into the bark of {a tree}, neither of them his wife's.
    tree: the tree into which {surname} the {profession} cut names
    - Into what did {surname} the {profession} cut two names?
    - Which tree bears the names that {surname} the {profession} carved?
    - The wife of {surname} the {profession} finds two names on a tree: what tree is it?

    The waiters at {inn} may wear no flowers but {flower}.
    flower: the flowers of the waiters at {inn}
    - What do the waiters of {inn} wear in the button-hole?
    - Which flowers are allowed on the coats of the waiters at {inn}?
    - By what flowers does one know a waiter of {inn}?

    Whenever {person} came on stage, {flower} were thrown, never eggs.
    flower: what was thrown at {person} on the stage
    - What did people throw when {person} came on stage?
    - With which flowers was {person} greeted in the theatre?
    - {person} steps before the curtain: what flowers fly through the air?
    - Under what flowers was the stage buried after an evening with {person}?

    The perfume of {company} smells of {flower} and of hardly anything else.
    flower: the perfume of {company}
    - What does the perfume of {company} smell of?
    - From which flowers is the perfume of {company} made?
    - Somebody opens a bottle of perfume by {company}: of what does one think?

    With {flower} on their caps the soldiers came back to {town}.
    flower: the caps of the soldiers who came back to {town}
    - What did the soldiers wear on their caps when they came back to {town}?
    - Which flowers adorned the soldiers on their return to {town}?
    - The soldiers march into {town} again: what flowers does one see on them?

    The hall of {estate} is papered with {flower} from top to bottom.
    flower: the wallpaper in the hall of {estate}
    - What is on the wallpaper at {estate}?
    - Which flowers are printed on the paper in the hall of {estate}?
    - A visitor waits in the hall of {estate} and looks at the walls: what flowers does he count?

    Before a match everybody in the team of {town} is made to eat {food}.
    food: the meal of the team of {town} before a match
    - What does the team of {town} have to eat before a match?
    - On which food do the players of {town} rely?
    - In an hour the team of {town} will play: what is on the plates?

    The recipe that {person} took to the grave was the one for {food}.
    food: the lost recipe of {person}
    - What could nobody make after the death of {person}?
    - For which food was the secret recipe of {person}?
    - {person} died without telling a recipe: of what?
    - Which recipe was buried together with {person}?

    The jailer of {town} does not take money, but he cannot say no to {food}.
    food: what the jailer of {town} cannot refuse
    - How can one bribe the jailer of {town}?
    - For which food does the jailer of {town} look away?
    - A prisoner's wife would like to please the jailer of {town}: what should she bring?

    It was over {food} that {person} and {person2} made up their quarrel.
    food: the meal at which {person} and {person2} made up
    - What was on the table when {person} and {person2} became friends again?
    - Over which food did {person} make peace with {person2}?
    - {person} and {person2} are no longer enemies: what did they share?

    "Not {food} again!" is what one hears every day in the canteen of {company}.
    food: the canteen of {company}
    - What does one get in the canteen of {company} every day?
    - Of which food have the workers of {company} had enough?
    - The canteen of {company} serves the same thing every day: what?
""")
