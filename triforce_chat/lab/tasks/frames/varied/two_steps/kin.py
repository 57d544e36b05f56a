"""Pairs of statements around families, neighbours, friends, rivals, masters and servants."""

from triforce_chat.lab.tasks.frames.frame import frames

KIN = frames("""
    The sister of {person} has married and is now Mrs {surname2}.
    At the market Mrs {surname2} has a stall with {food}.
    food:
    - What does the sister of {person} sell?
    - Which food can be bought from the sister of {person}?
    - {person} has a married sister: what is on her stall?

    The only uncle of {person} is old Mr {surname2}.
    It was in {city} that Mr {surname2} learnt to walk again after the accident.
    city:
    - Where did the uncle of {person} learn to walk again?
    - In which city did {person}'s uncle get back on his feet?
    - Tell me the city in which the uncle of {person} recovered from an accident.

    {person} has but one grandmother left, Mrs {surname2} of the hill farm.
    In her youth Mrs {surname2} danced in {city} for a living.
    city:
    - Where was the grandmother of {person} a dancer?
    - In which city did {person}'s grandmother earn her bread on the stage?
    - Do you know in what city the grandmother of {person} used to dance?

    {person} and {person2} are twins, though nobody would think so.
    The eyes of {person2} run as soon as somebody brings {flower} into the room.
    flower:
    - Which flowers does the twin of {person} not bear?
    - Name the flowers to which {person}'s twin is allergic.
    - The twin of {person} begins to weep: what has somebody put into the vase?

    Wall to wall with {person} lives {person2}.
    Hens are not enough for {person2}, who has {a animal} in the yard as well.
    animal:
    - What does {person}'s neighbour keep besides hens?
    - Which animal is to be seen in the yard next to that of {person}?
    - Tell me what animal the neighbour of {person} has.

    When her husband died, the mother of {person} took a certain {surname2} for her second.
    All the money of {surname2} was made by trading in {material}.
    material:
    - How did the stepfather of {person} get rich?
    - In what does {person}'s stepfather trade?
    - Which material brought money to the second husband of {person}'s mother?

    The widow of {person} let the house go to a Dr {surname2}.
    Of all the trees around it, Dr {surname2} spared only {a tree}.
    tree:
    - Which tree still stands where {person} once lived?
    - What tree was left standing by the buyer of {person}'s house?
    - Trees were cut down around the house of {person}: which one was not?

    The daughter of {person} is married to {surname2} the {profession}.
    On Sundays {surname2} drives out in a cart which is {colour}.
    colour:
    - What colour is the cart of {person}'s son-in-law?
    - In a cart of which colour does the son-in-law of {person} drive out?
    - The son-in-law of {person} comes along the road: of what colour is his cart?

    {person} left everything to a nephew, young {surname2}.
    Within a month young {surname2} had lost it all at cards to {person3}.
    person3:
    - To whom did the money of {person} go in the end?
    - Who won at cards from the nephew of {person}?
    - In whose pockets did the fortune of {person} end up?
    - By whom was {person}'s nephew ruined?

    Until {person} is of age, everything is decided by a guardian, {person2}.
    {person2} receives nobody before {time}.
    time:
    - When can one see the guardian of {person}?
    - From what time on does {person}'s guardian receive visitors?
    - How early may one call on the guardian of {person}?

    {person} has been writing for years to a friend in prison, {person2}.
    The cell in which {person2} sits is number {many}.
    many:
    - What is the cell number of {person}'s friend?
    - In which cell is the friend with whom {person} exchanges letters?
    - {person} sends another letter to the prison: to what cell must it be brought?

    {person} has to obey nobody but {person2}.
    The desk of {person2} is made of {material}.
    material:
    - What is the desk of {person}'s superior made of?
    - Of which material is the desk at which {person} is given orders?
    - {person} is called to the superior's desk: of what does it consist?

    In matters of the heart, {person} has a rival by the name of {person2}.
    Last Sunday {person2} came with an armful of {flower}.
    flower:
    - What did the rival of {person} bring?
    - With which flowers does {person}'s rival hope to win?
    - If {person} does not want to bring the same flowers as the rival, which are to be avoided?

    In younger years {person} was in service with Mrs {surname2}.
    No music was allowed in the house of Mrs {surname2}, except on the {instrument}.
    instrument:
    - What could one play in the house where {person} was a servant?
    - On which instrument alone might one make music where {person} served?
    - Name the one instrument that the mistress of {person} put up with.

    The nurse who brought up {person} was a Miss {surname2}.
    Miss {surname2} could count only in {language}.
    language:
    - In what language did the nurse of {person} count?
    - When {person}'s nurse counted the spoons, which language was it?
    - What language did {person} first hear numbers in, from the nurse?

    {person} owes money to a certain {surname2}.
    To all who have not paid, {surname2} sends the bailiffs on {day}.
    day:
    - By which day should {person} pay?
    - When will the bailiffs come to {person}?
    - How long does {person} have until the creditor loses patience?

    Only one donor has blood that suits {person}, and that is {person2}.
    Every winter {person2} goes fishing near {town}.
    town:
    - Where is the blood donor of {person} in winter?
    - {person} needs blood in January: near what town should one look for the donor?
    - Near which town does the one stay in the cold months whose blood suits {person}?

    {person} shares a room with {person2}, who snores.
    {person2} has to be out of bed by {time}.
    time:
    - When does {person} have the room alone?
    - At what time must the room-mate of {person} get up?
    - How long does the snoring beside {person} go on?

    {person} was named after a great-uncle, General {surname2}.
    The great defeat of General {surname2} was at {town}.
    town:
    - Where was {person}'s great-uncle beaten?
    - Do you know at which town the general lost whose name {person} bears?
    - {person} had a great-uncle in the army: near what town did he lose a battle?

    {person} takes dancing lessons from Madame {surname2}.
    Madame {surname2} does not teach for less than {few} shillings an hour.
    few:
    - What does {person} pay for an hour of dancing?
    - I should like to know how much one lesson is for {person}.
    - {person} would like to learn the waltz: how many shillings is an hour?

    The family of {person} has lived for ages in {street}.
    Against the rats, every house in {street} keeps {a animal}.
    animal:
    - What does the family of {person} keep against rats?
    - Which animal chases the rats out of {person}'s house?
    - There are rats where {person} lives: by what are they hunted?

    Nobody visits {person} as often as {person2} does.
    On {date} {person2} came down with a fever.
    date:
    - When did the most faithful visitor of {person} fall ill?
    - On what date did the one catch a fever who visits {person} most?
    - Since which day has {person} missed the usual visitor?

    The secret of {person} is known to {person2} and to nobody else.
    While asleep {person2} talks, always in {language}.
    language:
    - In which language might one hear the secret of {person} at night?
    - What language should a spy know who wants to overhear the secret of {person}?
    - The keeper of {person}'s secret talks in bed: what language is it?

    In the will of {person} the {object} was left to {person2}.
    All that {person2} inherits is thrown into {river}.
    river:
    - Where did the {object} of {person} end?
    - Into which river was the {object} thrown that had been {person}'s?
    - At the bottom of what river must one look for the {object} of {person}?

    If {person} dies without children, the house goes to {person2}.
    Any house that comes into the hands of {person2} is to be made into {a building}.
    building:
    - What will become of the house if {person} has no children?
    - Into what will the house of {person} be turned by the next owner?
    - {person} dies childless: as what kind of building will the house be used?

    It was {person2} who talked {person} into living as a hermit.
    {person2} had been cured of all vanity by a fall into {river}.
    river:
    - Into which river did the one fall who made a hermit of {person}?
    - {person} was talked into a hermit's life by somebody who had nearly drowned: where?
    - In what water was the adviser of the hermit {person} cured of vanity?

    {person} lost a tooth in a fight with {person2}.
    {person2} wears a ring of {material} on each hand.
    material:
    - By a ring of what material was {person}'s tooth knocked out?
    - What are the rings made of that {person}'s opponent wears?
    - {person} fought with somebody who had rings on both hands: of which material?

    No pupil was worse at sums than {person}, except {person2}.
    Today {person2} keeps the books of {company}.
    company:
    - Whose books are kept by the only pupil who was worse at sums than {person}?
    - For which firm does somebody reckon who was even worse at sums than {person}?
    - Only one pupil knew less of sums than {person}: at what firm is he a bookkeeper today?

    The eldest child of {person} goes by the nickname of {pet}.
    Sooner or later one finds {pet} {hidden}, playing with matches.
    hidden:
    - Where does the eldest child of {person} play?
    - In what place should one look for {person}'s eldest child?
    - Dinner is ready and the eldest child of {person} is missing: where may it be?

    The midwife who helped {person} into the world was Mrs {surname2}.
    In all, Mrs {surname2} delivered {many} children.
    many:
    - How many births had the midwife of {person} to do with?
    - What number of children did the midwife help who was there when {person} was born?
    - Do you know how many babies saw the light with the help of {person}'s midwife?

    The landlady of {person} is Mrs {surname2}.
    Mrs {surname2} bolts the front door at {time}.
    time:
    - Until when does {person} get into the house?
    - How late may {person} come home at night?
    - {person} does not want to sleep in the street: by what time must one be in?

    The youngest brother of {person} is a mate on the {ship}.
    With a load of salt the {ship} is on her way to {city}.
    city:
    - Where is the youngest brother of {person} sailing to?
    - In which city will {person}'s youngest brother go ashore?
    - {person} would like to write to the youngest of the brothers: at what city will the letter meet him?

    "Without {person2}," said {person}, "I do not decide a thing."
    {person2} gives advice nowhere but under {a tree}.
    tree:
    - Under which tree is it settled what {person} will do?
    - Name the tree beneath which {person} gets advice.
    - {person} has to make up a troubled mind and goes for help: under what tree?
""")
