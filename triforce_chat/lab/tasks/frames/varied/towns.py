"""Towns, cities and rivers as answers."""

from triforce_chat.lab.tasks.frames.frame import frames

TOWNS = frames("""
    Before {company} sells a cheese, the wheel must ripen for a year in the caves of {town}.
    town: the caves in which {company} ripens its cheese
    - Where does the cheese of {company} ripen?
    - In the caves of which town does {company} store its cheese?
    - Under which town would one find the cheese wheels of {company}?
    - {company} has made a fresh cheese: to what town is it carried next?

    {person} won the chess championship, though {city} was snowed in and half the players were missing.
    city: the chess championship that {person} won
    - Where did {person} become chess champion?
    - Which city saw {person} triumph at chess?
    - In what city was the tournament played that {person} won?
    - Name the city in which nobody could beat {person} at chess.

    The stained glass of the {building} of {town} was blown in {town2}.
    town2: the stained glass of the {building} of {town}
    - Where did the makers of the coloured windows of the {building} of {town} work?
    - From which town are the coloured windows in the {building} of {town}?
    - The {building} of {town} needs a new window to match the old ones: to what town should one write?
    - Tell me where the glass for the windows of the {building} of {town} was made.

    Mail for {estate} is sorted in {town}.
    town: the mail for {estate}
    - In what town do the letters to {estate} pass through the sorting office?
    - Which post office handles whatever is written to {estate}?
    - A letter to {estate} is late: in which town may it have been held up?
    - If one writes to {estate}, by way of which town does the letter go?

    It is in {city} that {person} has to report to the police twice a week.
    city: the police to which {person} has to report
    - In which city must {person} go to the police regularly?
    - Where do the police expect {person} twice a week?
    - The police have their eye on {person}: in what city?
    - Do you know in what city {person} is under the eyes of the police?

    There is only one town in which the plays of {person} are forbidden, and that is {town}.
    town: the ban on the plays of {person}
    - Where may no play by {person} be staged?
    - Which town does not allow the plays of {person}?
    - In what town does a theatre get into trouble with a play of {person}?
    - A troupe tours the country with the plays of {person}: which town must it leave out?

    The chain that {town} once stretched across {river} to stop the pirates is now in the museum of {city}.
    city: the chain of {town} across {river}
    - Where can one see the chain that {town} stretched across {river}?
    - To which city has the chain been taken that {town} once used to close {river}?
    - In what city's museum lies the chain with which {town} barred {river}?
    - If one would like to touch the chain that {town} drew across {river}, to what city must one travel?

    "I have never been as cold as in {city}," wrote {person} home.
    city: the cold of which {person} complained
    - Where did {person} freeze?
    - From which city did {person} complain about the cold?
    - What city was too cold for {person}?
    - {person} shivers and writes a letter: in what city?

    Whoever marries into the family of {estate} is taken to {town} for the first supper.
    town: the first supper of those who marry into {estate}
    - To which town are bride and groom of {estate} led to eat?
    - Where does somebody sup who has just married a child of {estate}?
    - In what town does the family of {estate} entertain its new members?
    - Tell me in which town the newly wed of {estate} have their first supper.

    The vaccine against the fever was flown to {town} from {city}.
    city: the vaccine for {town}
    - Where did the vaccine for {town} come from?
    - Which city helped {town} against the fever?
    - From what city was {town} supplied with vaccine?
    - The sick of {town} waited for an aeroplane: where had it started?

    Since the landslide buried the old one, {company} has run its quarry near {town}.
    town: the quarry of {company}
    - Near which town does {company} break stone?
    - Where is the quarry in which {company} works now?
    - Stones from {company} come out of the ground by what town?
    - Which town hears the quarrymen of {company} at work?

    {surname} the {profession} was expelled from every guild except that of {city}.
    city: the guild that kept {surname} the {profession}
    - Which city's guild did not throw out {surname} the {profession}?
    - In what city could {surname} the {profession} remain in the guild?
    - Where was {surname} the {profession} still a member of a guild?
    - Name the city in which {surname} the {profession} may go on with the trade as a guildsman.

    The wreck of the {ship} was towed to {city} and broken up there.
    city: the end of the {ship}
    - Where was the {ship} taken apart?
    - To which city did they tow what was left of the {ship}?
    - In what city did the {ship} become scrap?
    - Somebody wants a plank of the {ship}: in which city was she scrapped?

    When its own well is dry, {town} fetches its water from {town2} on carts.
    town2: the water for {town} when its well is dry
    - Where does {town} get water from when its well gives none?
    - Which neighbour lends {town} water?
    - There is a drought in {town}: to what place do the water carts roll?
    - From which town is water brought to {town}?

    {person} was a nobody everywhere but in {city}, where crowds waited at the stage door.
    city: the fame of {person}
    - Where was {person} famous?
    - In which city did people crowd to see {person}?
    - What city adored {person}?
    - If {person} wished to be recognized in the street, in which city could that happen?

    The data of {company} are copied every night to a cellar in {city}.
    city: the copies of the data of {company}
    - Where does {company} keep the backup of its data?
    - In which city are the data of {company} safe if the office burns down?
    - To what city are the files of {company} sent night after night?
    - All the computers of {company} have broken down: where is there a copy of what was on them?

    In {town} alone, of all the parishes on {river}, the bells are rung by women.
    town: the parish on {river} in which women ring the bells
    - In which parish on {river} do women ring the bells?
    - Where on {river} does one find women in the belfry?
    - What is the one parish on {river} that lets women pull the ropes?
    - Do you know at what place by {river} it is women who ring for church?

    Having missed the ferry, {person} had to walk all the way to {town}.
    town: the walk of {person} after the missed ferry
    - Because of a missed ferry {person} went on foot: how far?
    - To which town did {person} walk?
    - What town could {person} reach only on foot, the ferry having left?
    - Where did the long walk of {person} end?

    Beets from {estate} are boiled down to sugar in {town}.
    town: the sugar from the beets of {estate}
    - Where are the beets of {estate} turned into sugar?
    - In which town is the sugar mill to which {estate} delivers?
    - The beet carts leave {estate}: what town are they heading for?
    - Which town makes sugar of what grows on the fields of {estate}?

    Both twins of {person} are at boarding school in {town}, and homesick.
    town: the boarding school of the twins of {person}
    - In which town are the twins of {person} at school?
    - Where do the children of {person} feel homesick?
    - {person} writes to the twins: to what town does the letter go?
    - Tell me in what town the twins of {person} live during term.

    Only {river} kept the plague away from {town}.
    river: what kept the plague away from {town}
    - Which river saved {town} from the plague?
    - Thanks to which river did nobody fall ill in {town}?
    - What water did the plague not cross on its way to {town}?
    - By which river was {town} protected from infection?

    The fish on the table of {inn} was swimming in {river} an hour ago.
    river: the fish at {inn}
    - Where is the fish caught that one eats at {inn}?
    - From which river does {inn} have its fish?
    - A guest of {inn} enjoys the fish: in what river did it live?
    - In which river must the fisherman of {inn} cast his net?

    If the sluices of {town} were opened, {river} would run through the market.
    river: the river behind the sluices of {town}
    - Which river do the sluices of {town} hold back?
    - What river would flood the market of {town}?
    - By which river is {town} threatened, should its sluices fail?
    - Name the river against which {town} built its sluices.
""")
