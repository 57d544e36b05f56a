"""Ships, firms, projects, pets and other names as answers."""

from triforce_chat.lab.tasks.frames.frame import frames

NAMED_THINGS = frames("""
    {person} came home from the war on board the {ship}.
    ship: the journey of {person} home from the war
    - On which ship did {person} return from the war?
    - What ship brought {person} back when the war was over?
    - The war is over, and {person} goes ashore: from what ship?
    - By which vessel was {person} carried home?

    The {ship} was the only one of the fleet of {town} that rode out the storm.
    ship: the ship of the fleet of {town} that rode out the storm
    - Which ship of {town} was not lost?
    - The fleet of {town} was caught by a storm: which ship survived?
    - What is the name of the one vessel left to {town} after the storm?
    - All ships of {town} went down except one: which?

    What is left of the cannons of the {ship} stands before the {building} of {town}.
    ship: the cannons before the {building} of {town}
    - From which ship are the cannons before the {building} of {town}?
    - Whose cannons stand in front of the {building} of {town}?
    - On board what ship were the guns that one sees by the {building} of {town}?
    - Tell me which ship once fired the cannons that now guard the {building} of {town}.

    Whenever the lamp at {town} is red, the {ship} is waiting for a pilot.
    ship: the ship that waits for a pilot at {town} when the lamp is red
    - Which ship needs a pilot when the lamp at {town} is red?
    - A red lamp burns at {town}: which ship has to be guided in?
    - To which vessel does the red lamp of {town} belong?
    - If they light the red lamp at {town}, to which ship must the pilot row?

    As ballast for the {ship} they took the stones of the old wall of {town}.
    ship: the stones of the old wall of {town}
    - Into which ship were the stones of the wall of {town} loaded?
    - What ship carried off the old wall of {town}?
    - The wall of {town} has gone to sea: in the hold of which ship?
    - Name the ship that sailed away with the wall of {town} in her belly.

    {company} alone dared to insure the voice of {person}.
    company: the insurance of the voice of {person}
    - Which firm insured the voice of {person}?
    - With whom is the voice of {person} insured?
    - Which company has to pay if {person} can no longer sing?
    - {person} is hoarse: which firm begins to worry?

    On the back of the chairs at {inn} one reads the name {company}.
    company: the maker of the chairs at {inn}
    - Who made the chairs at {inn}?
    - A chair of {inn} is broken: which firm can supply another?
    - Whose name is on the chairs at {inn}?
    - By which company was {inn} provided with chairs?

    {company} swallowed {company2} in a single afternoon.
    company: the end of {company2}
    - Who took over {company2}?
    - Into which firm has {company2} disappeared?
    - To which company does {company2} belong now?
    - By whom was {company2} bought up?

    The advertisement that covers the whole wall in {street} praises {company}.
    company: the advertisement on the wall in {street}
    - For which firm does the wall in {street} advertise?
    - Which company does one read about on the wall in {street}?
    - Who pays for the painted wall in {street}?
    - Do you know whose goods are praised on the wall in {street}?

    It was not the state but {company} that drained the marsh at {town}.
    company: the drained marsh at {town}
    - Which firm drained the marsh at {town}?
    - Thanks to whom are there dry fields by {town} where a marsh used to be?
    - By which company was {town} freed of its marsh?
    - The marsh of {town} is gone: whose work was that?

    {person} has worked for {company} without once asking for more money.
    company: the employer of {person}
    - Who employs {person}?
    - By which company is {person} paid?
    - For which firm does {person} work?
    - Which firm never heard a wish for higher wages from {person}?

    Out of the ashes of Project {project2}, as the minister put it, rose Project {project}.
    project: what became of Project {project2}
    - By which project was Project {project2} followed?
    - What is the name of the successor of Project {project2}?
    - Project {project2} had failed: what came after it?
    - Which project grew out of Project {project2}?

    The satellite that {company} is building hides behind the name Project {project}.
    project: the satellite of {company}
    - Under what name does {company} build a satellite?
    - Which name conceals the satellite of {company}?
    - What do they call the secret satellite at {company}?
    - Somebody at {company} works on the satellite: on which project is he, officially?

    {person} was moved to Project {project} as a punishment.
    project: the punishment of {person}
    - To which project was {person} transferred?
    - What project did {person} have to join against any wish?
    - {person} had to be punished: in which project did that end?
    - Which project got {person}, who had not asked for it?

    Under the sofa of {person} lives the cat {pet}, which no visitor has ever seen.
    pet: the cat of {person}
    - What is the cat of {person} called?
    - To what name does the cat under the sofa of {person} answer?
    - {person} calls the cat: what does one hear?
    - Which name was given to the cat of {person}?

    {pet} carried {person} over the mountains, though it was lame before they arrived.
    pet: the horse of {person}
    - What was the name of the horse that took {person} over the mountains?
    - On which horse did {person} cross the mountains?
    - {person} reached the far side of the mountains on a lame horse: what was it called?
    - By what horse was {person} carried?

    The elephant of the circus of {city} was known to every child as {pet}.
    pet: the elephant of the circus of {city}
    - What was the circus elephant of {city} called?
    - By what name did the children of {city} know the elephant?
    - The children of {city} shout for the elephant: which name?
    - What name had been given to the elephant that one saw in {city}?

    The goose that warned {estate} of the thieves was called {pet} and lived to a great age.
    pet: the goose that warned {estate}
    - What was the name of the goose to which {estate} owes its silver?
    - Which name did the goose have that cackled at {estate}?
    - Thieves came to {estate}, and a goose cried out: what was it called?
    - Tell me what they called the goose that drove the thieves from {estate}.

    {surname} signs all pictures with the name {town}, after the village of his birth.
    town: the name under which {surname} paints
    - What does one read on the pictures of {surname}?
    - Under which name does the painter {surname} work?
    - With what name are the paintings of {surname} signed?
    - A picture by {surname} comes to auction: whose name does it seem to bear?

    Though the map says otherwise, the sailors call the rock off {town} the {object}.
    object: the rock off {town}
    - What name do sailors give to the rock off {town}?
    - By what name is the rock off {town} known at sea?
    - A sailor passes the rock off {town}: what does he call it?
    - I would like to know what the rock off {town} is called on board.

    The typeface that {company} cut for its Bible is named after {person}.
    person: the typeface of {company}
    - Whose name does the typeface of {company} bear?
    - After whom did {company} call its letters?
    - Which person is remembered by the type in the Bible of {company}?
    - Somebody asks {company} for the letters of its Bible: under whose name are they sold?

    {surname} is the one name that must never be spoken at {estate}.
    surname: the forbidden name at {estate}
    - Which name may nobody say at {estate}?
    - What name is never heard at {estate}?
    - A guest at {estate} should be careful not to utter one name: which?
    - Whom must one not mention at {estate}?

    If a boy is born at {estate}, he is always christened {pet}, like the dog that once saved the house.
    pet: the name for boys at {estate}
    - What are boys called at {estate}?
    - Which name do all sons of {estate} get?
    - A son has been born at {estate}: what will be his name?
    - After which dog are the boys of {estate} named?
""")
