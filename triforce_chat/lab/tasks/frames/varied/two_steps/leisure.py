"""Pairs of statements around sport, music, the stage, animals, gardens, kitchens, games and gifts."""

from triforce_chat.lab.tasks.frames.frame import frames

LEISURE = frames("""
    Nobody in {town} plays chess as well as {person}.
    {person} never touches a piece unless {a object} lies beside the board.
    object:
    - What does the best chess player of {town} keep beside the board?
    - Without which thing does the chess master of {town} not play?
    - The best chess player of {town} refuses to begin: what is missing?

    The goal of {town} is kept by {person}.
    On the back of {person} one reads the number {few}.
    few:
    - Which number does the goalkeeper of {town} wear?
    - Under what number does the keeper of {town} play?
    - {town}'s goalkeeper turns round: what number do we see?

    The football club of {town} plays behind {estate}.
    On the ground behind {estate} there is room for {big} people.
    big:
    - How many people can watch the football club of {town}?
    - For what number of spectators is there room at a football match of {town}?
    - Everybody wants to see the football match of {town}: how many get in?

    {person} is trained for the ring by {person2}.
    Boxers who are trained by {person2} eat nothing but {food}.
    food:
    - What does the boxer {person} eat?
    - On which food does {person} live before a fight?
    - {person} is hungry, but the trainer allows one thing only: what?

    The last to finish the race of {city} was {person}.
    On the way {person} had climbed {a tree} to look at the view.
    tree:
    - What did the slowest runner of {city} climb?
    - Which tree kept somebody from running faster in the race of {city}?
    - The last in the race of {city} had been up a tree: what kind?

    The match in {town} was under the eyes of the referee {surname}.
    The referee {surname} blows a whistle of {material}.
    material:
    - What was the whistle made of that ended the match in {town}?
    - A whistle of which material was heard at the match in {town}?
    - The match in {town} is over: through what material was the air blown?

    The firemen of {town} march to a tune by {person}.
    In all that {person} wrote, the {instrument} begins.
    instrument:
    - Which instrument begins the march of {town}'s firemen?
    - With what instrument does the tune for the firemen of {town} open?
    - The firemen of {town} are about to march: what does one hear first?

    The choir of {town} meets at {inn}.
    Any singing has to stop at {inn} by {time}.
    time:
    - When does the choir of {town} have to stop?
    - How late may the choir of {town} sing?
    - The choir of {town} is in the middle of a song: at what time must it break off?

    The voice of {person} was ruined by the singing master {surname2}.
    Each lesson with the singing master {surname2} was held {hidden}.
    hidden:
    - Where was the voice of {person} ruined?
    - In what place did {person} learn to sing?
    - {person} goes to a singing lesson: where is it given?

    In the play at {town} the ghost is acted by {person}.
    The shoes that {person} wears on every stage are {colour}.
    colour:
    - What colour are the shoes of the ghost in {town}?
    - In shoes of which colour does the ghost walk about in the play at {town}?
    - The ghost enters on the stage of {town}: what colour are its shoes?

    The circus that has come to {town} is that of {surname}.
    High up on the rope of {surname} walks {a animal}.
    animal:
    - What walks on the rope in {town}?
    - Which animal can be seen on the rope at the circus in {town}?
    - All {town} looks up to the rope: what animal is there?

    The dog {pet} listens to {person} and to nobody else.
    The only language {person} knows is {language}.
    language:
    - In what language must one talk to the dog {pet}?
    - Which language does the dog {pet} understand?
    - The dog {pet} should sit down: in what language does one say so?

    The kitten {pet} is a child of old {pet2}.
    Mice are safe from old {pet2} except {hidden}.
    hidden:
    - Where does the mother of the kitten {pet} catch mice?
    - In what place does the mother of {pet}, the kitten, wait for mice?
    - The kitten {pet} looks for its mother: where may she be after mice?

    The saddle of the racehorse {pet} was made by {person}.
    Over each saddle {person} sat for {many} days.
    many:
    - How long did it take to make the saddle of the racehorse {pet}?
    - In how many days was the saddle for {pet}, the racehorse, finished?
    - The racehorse {pet} needs a second saddle by the same hand: for how many days must one wait?

    The zoo of {city} got its elephant from {person}.
    Once a year, on {day}, {person} goes to see the animals that were given away.
    day:
    - When is the elephant of {city} visited?
    - On which day does the giver of the elephant come to the zoo of {city}?
    - For what day does the zoo of {city} wash the elephant?

    The cake for the fair of {town} is baked as old {surname} wrote it down.
    Old {surname} wrote down {few} eggs and no sugar.
    few:
    - How many eggs are in the fair cake of {town}?
    - What number of eggs does one need for the cake of {town}'s fair?
    - Somebody bakes the cake for the fair of {town}: how many eggs should be broken?

    The kitchen of {estate} obeys Mrs {surname}.
    In her right hand Mrs {surname} always holds a spoon of {material}.
    material:
    - What is the cook's spoon made of at {estate}?
    - With a spoon of which material do they stir the soup at {estate}?
    - In the kitchen of {estate} a spoon is raised: of what does it consist?

    The wine at {inn} is grown at {estate}.
    The last good wine of {estate} is that of {year}.
    year:
    - Which vintage should one ask for at {inn}?
    - Of what year is the last good wine at {inn}?
    - A guest of {inn} wants a good bottle: from which year must it be?

    {person} was given a box of chocolates by {person2}.
    {person2} buys presents only in {city}.
    city:
    - Where do the chocolates of {person} come from?
    - In which city were the chocolates bought that {person} got?
    - {person} opens a box of chocolates: in what city had it been in the window?

    At the pie contest of {town} it is {person} who judges.
    Since {date} {person} has not been able to taste anything.
    date:
    - Since when has the judge of the pies of {town} had no taste?
    - From which day on did it make no difference what pies were brought to the contest of {town}?
    - The judge of {town}'s pies lost all sense of taste: on what date?

    The coat of {person} hangs in the cloakroom under number {many}.
    By mistake number {many} was given to {person2} as well.
    person2:
    - Who might go home in the coat of {person}?
    - By whom could the coat of {person} be carried off?
    - {person} comes to the cloakroom and finds no coat: who may have it?

    The hedges of {estate} are cut by {person}.
    {person} turns every hedge into {a animal}.
    animal:
    - What do the hedges of {estate} look like?
    - Which animal can one see in the hedges at {estate}?
    - Visitors laugh at the hedges of {estate}: what are they cut to resemble?

    {person} got a bag of seeds from {person2}.
    All the seeds of {person2} are those of {flower}.
    flower:
    - What will grow from the seeds of {person}?
    - Do you know which flowers {person} has sown?
    - {person} waters the seeds: what flowers will come up?

    The mummy in the museum of {town} was dug up by one Dr {surname}.
    A snake bite was the end of Dr {surname}, in {city}.
    city:
    - Where did the finder of {town}'s mummy die?
    - In which city did a snake kill the one who dug up the mummy of {town}?
    - They speak of a curse on the mummy of {town}: in what city did it reach the finder?

    The sailors of the {ship} are tattooed by {person}.
    {person} has only ever learnt to draw {a animal}.
    animal:
    - What is tattooed on the sailors of the {ship}?
    - With which animal are the arms of the men from the {ship} adorned?
    - A man from the {ship} rolls up his sleeve: what animal is there?

    No kite flew higher at {town} than that of {person}.
    {person} had tied a tail of {many} feet to the kite.
    many:
    - How long was the tail of the highest kite of {town}?
    - What did the tail of {town}'s best kite measure, in feet?
    - One kite rose above all others at {town}: how many feet did it draw behind it?

    The ghost at {inn} is said to be that of {person}.
    When alive, {person} earned a living as {a profession}.
    profession:
    - What had the ghost of {inn} been in life?
    - Which profession did the one follow who now haunts {inn}?
    - By what trade had the ghost at {inn} once lived?

    The stove at {inn} is lit by the maid {surname}.
    The maid {surname} never burns any wood but that of the {tree}.
    tree:
    - What wood do they burn at {inn}?
    - Name the tree that keeps the guests of {inn} warm.
    - The stove at {inn} is lit: from what tree is the wood?

    The linen of {estate} is washed by {person}.
    What {person} has washed is hung up {hidden}.
    hidden:
    - Where is the linen of {estate} dried?
    - In what place does the washing of {estate} hang?
    - The linen of {estate} is still wet: where has it been put?

    {person} had the cards read by Madame {surname2}.
    Madame {surname2} warns everybody who comes of {a animal}.
    animal:
    - Of what was {person} warned?
    - Which animal should {person} beware of if the cards are right?
    - The cards have been read for {person}: what animal did they speak of?

    The play at {town} was put into verse by {person}.
    Verses by {person} are in {language} and can be had in nothing else.
    language:
    - In what language is the play at {town}?
    - Which language do the actors in {town} have to learn?
    - The curtain rises in {town}: what language will one hear?

    At {estate} all the floors are of {material}.
    In those parts {material} is cleaned with {food}.
    food:
    - With what do they clean the floors of {estate}?
    - Which food takes the dirt off the floors at {estate}?
    - The maids of {estate} go down on their knees to clean: what do they use?

    Nothing is planted at {estate} but {flower}.
    In this valley {flower} give a honey which is {colour}.
    colour:
    - What colour is the honey of {estate}?
    - Of which colour is the honey that the bees make at {estate}?
    - The bees of {estate} have filled the combs: what colour does one see?

    On Sundays {person} insists on {food}.
    The only place in town that serves {food} is {inn}.
    inn:
    - Where does {person} eat on Sundays?
    - In which inn can one meet {person} on a Sunday?
    - It is Sunday and {person} is hungry: to what inn will it be?

    The cook at {inn} understands only {language}.
    Of all the people there, only {person} can interpret from {language}.
    person:
    - Who can interpret for the cook at {inn}?
    - By whose help can one talk to the cook at {inn}?
    - A guest would like to praise the cook of {inn}: whom must he take along?

    The puppet theatre in {town} is run by {surname}.
    In the plays of {surname} the devil is always beaten with {a object}.
    object:
    - With what do they beat the devil in the puppet theatre of {town}?
    - Which object comes down on the devil in the plays that one sees in {town}?
    - The devil enters in the puppet theatre of {town}: with what will he be beaten?

    {pet} is what {person} calls the best of all the hens.
    It is always {hidden} that {pet} lays her egg.
    hidden:
    - Where does the best hen of {person} lay?
    - In what place should {person} look for an egg?
    - Do you know where the egg is that the best hen of {person} has laid?

    The card table at {inn} comes from {estate}.
    {estate} was sold up because of the gambling of {person}.
    person:
    - Whose gambling brought {inn} its card table?
    - By the ruin of which gambler did {inn} get a card table?
    - Name the gambler in whose house the card table of {inn} once stood.

    The radio play that all {city} talks about is by {person}.
    With {person} the murderer is always {a profession}.
    profession:
    - What is the murderer by profession in the radio play that {city} talks about?
    - A man of which trade is guilty in {city}'s famous radio play?
    - You switch on the radio play that {city} talks about: whom should you suspect, by trade?

    The band of {town} is short of a player, and {person} has offered to help.
    {person} owns {a instrument}, but no notes.
    instrument:
    - What will the new player of the band of {town} bring along?
    - Which instrument belongs to the one who would help the band of {town}?
    - The band of {town} finds another player: with what instrument will he come?
""")
