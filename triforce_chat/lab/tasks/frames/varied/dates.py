"""Years, days and hours."""

from triforce_chat.lab.tasks.frames.frame import frames

DATES = frames("""
    {river} has not been frozen over since {year}.
    year: the ice on {river}
    - In which year did ice cover {river} for the last time?
    - When could one walk across {river} on the ice for the last time?
    - What year brought the last frost that closed {river}?
    - Since when has nobody skated on {river}?

    Nobody gets a drink at {inn} before {time}.
    time: the opening hour of {inn}
    - At what time does {inn} open?
    - From what hour can one drink at {inn}?
    - A thirsty man stands before {inn}: until what time must he wait?
    - When are the first glasses filled at {inn}?

    The last wolf of {town} was shot in {year}.
    year: the last wolf of {town}
    - When did they kill the last wolf of {town}?
    - In which year was {town} rid of wolves?
    - Since what year has no wolf been heard near {town}?
    - What was the year of death of the last wolf of {town}?

    {person} was let out of prison on {date}.
    date: the release of {person}
    - On which day did {person} leave prison?
    - When was {person} a free person again?
    - From what date was {person} at liberty?
    - The prison gates opened for {person}: on what day was that?

    The lease of {estate} runs out on {date}.
    date: the lease of {estate}
    - Until when is {estate} let?
    - On what date does the tenancy of {estate} end?
    - By which day must the tenant have left {estate}?
    - What is the last day of the lease of {estate}?

    The court has bought its candles from {company} since {year}.
    year: the candles that {company} makes for the court
    - In which year did {company} begin to supply the court?
    - Since when have candles of {company} burnt at court?
    - From what year on was {company} allowed to sell to the court?
    - Candles of {company} came to court for the first time: when was that?

    Each night at {time} {person} takes nine drops of the medicine.
    time: the medicine of {person}
    - When is the medicine of {person} due?
    - At what time must {person} have the drops?
    - The nurse of {person} looks at the clock: at what hour does she bring the medicine?
    - What is the right time for the drops of {person}?

    Once a year, on {day}, the flags are hung out at {estate}.
    day: the flags at {estate}
    - On which day are there flags at {estate}?
    - When is {estate} decked with flags?
    - Flags hang from the windows of {estate}: what day must it be?

    On the night of {date} a comet stood over {city}.
    date: the comet over {city}
    - When could one see the comet from {city}?
    - On which night did the comet appear above {city}?
    - What was the date of the comet of {city}?
    - People in {city} looked up at a comet: when?

    The foal {pet} came into the world on {date}, in the middle of a storm.
    date: the birth of the foal {pet}
    - When was {pet} foaled?
    - What is the birthday of the foal {pet}?
    - On which day did the mare give birth to {pet}?
    - There was a storm when {pet} was born: on what date?

    The creditors of {company} have agreed to wait until {date}.
    date: the patience of the creditors of {company}
    - By when must {company} pay?
    - On which day does {company} have to settle its debts?
    - Up to what date have the creditors given {company} time?
    - When does the patience of those end to whom {company} owes money?

    Hail smashed every window of the {building} of {town} in {year}.
    year: the hail that smashed the windows of the {building} of {town}
    - In which year were the windows of the {building} of {town} broken?
    - When did hail fall on the {building} of {town}?
    - What year's hail ruined the windows of the {building} of {town}?
    - The {building} of {town} once lost all its windows: in which year?

    At {time} the gates of {town} are locked for the night.
    time: the closing of the gates of {town}
    - When are the gates of {town} shut?
    - Until what time can one still enter {town}?
    - A rider hurries towards {town} in the evening: by what time must he be there?
    - At what hour is {town} closed?

    The workers of {company} laid down their tools on {date}.
    date: the strike at {company}
    - When did the strike at {company} begin?
    - On what day did work stop at {company}?
    - Since when has there been a strike at {company}?
    - What is the date of the first day of the strike at {company}?

    On {date} the first trial of Project {project} ended in smoke.
    date: the first trial of Project {project}
    - When did the first trial of Project {project} fail?
    - On which day was Project {project} tried for the first time?
    - What was the date of the failure of Project {project}?
    - Project {project} went up in smoke at its first trial: when was that?

    In {year} a fever carried off half of {town}.
    year: the fever of {town}
    - When did half of {town} die?
    - In which year did the fever rage in {town}?
    - During what year was {town} robbed of half its people?
    - Which year is remembered in {town} because of a fever?

    High water at {town} will be at {time} today.
    time: the high water at {town}
    - When does the tide turn at {town}?
    - At what time is the sea highest at {town}?
    - A boat can leave {town} only at high water: at what time?
    - What hour is named for the tide at {town}?

    {surname} the {profession} has not touched tobacco since {date}.
    date: the last tobacco of {surname} the {profession}
    - When did {surname} the {profession} give up smoking?
    - On which day did {surname} the {profession} smoke the last pipe?
    - Since when has {surname} the {profession} lived without tobacco?
    - What day was the last on which {surname} the {profession} smoked?

    Before {year} nobody in {city} had tasted coffee.
    year: the first coffee in {city}
    - When did coffee come to {city}?
    - In which year was coffee first drunk in {city}?
    - What year brought {city} its first cup of coffee?
    - Since when has coffee been known in {city}?

    {person} has to feed the meter in {street} at {time}, or the light goes out.
    time: the meter in {street}
    - When does the light go out in {street} unless somebody pays?
    - By what time must a coin be in the meter in {street}?
    - The lamp in {street} begins to flicker: what time is it?
    - Do you know when the meter in {street} wants its next coin?

    Season tickets for the trams of {city} that were issued before {date} are no longer valid.
    date: the old season tickets for the trams of {city}
    - From what date on must a season ticket be for the trams of {city} to accept it?
    - By which date do the conductors of {city} tell a good season ticket from a worthless one?
    - Somebody shows an old season ticket in a tram of {city}: on which day at the earliest must it have been issued?
    - Tell me the date before which a season ticket of the trams of {city} must not have been issued.

    Not until {year} were women allowed to vote in {town}.
    year: the vote of the women of {town}
    - Since when have the women of {town} had the vote?
    - In which year did {town} grant women the vote?
    - What year let the women of {town} take part in elections?
    - A woman of {town} goes to the polls for the first time in history: what year is it?

    The swallows come back to {estate} on {day}, as if they had a calendar.
    day: the return of the swallows to {estate}
    - On which day do the swallows return to {estate}?
    - When can one see the first swallow of the year at {estate}?
    - Somebody at {estate} looks up and sees swallows again: what day is it?
    - What is the day of the swallows at {estate}?

    The boiler of the {ship} must be inspected again by {date} at the latest.
    date: the inspection of the boiler of the {ship}
    - Until when may the {ship} steam without another inspection?
    - On what date does the certificate for the boiler of the {ship} run out?
    - What is the last day for the inspector to look at the boiler of the {ship}?
    - The captain of the {ship} puts off the inspection of the boiler: until when can he do so?

    On {date} {person} lodged an appeal, one day before it would have been too late.
    date: the appeal of {person}
    - When did {person} appeal against the verdict?
    - What is the date of the appeal of {person}?
    - On which day did the court receive the appeal of {person}?
    - {person} would not accept the sentence: when did the court hear of that?

    Bread is taken out of the oven at {inn} at {time}, and by then the guests are queuing.
    time: the fresh bread at {inn}
    - When is there fresh bread at {inn}?
    - At what hour does the baker of {inn} open the oven?
    - Somebody wants a loaf of {inn} while it is hot: at what time should he come?
    - Tell me when the loaves are done at {inn}.

    {year} was the year in which {company} lost its last horse and bought its first lorry.
    year: the first lorry of {company}
    - In which year did {company} change from horses to a lorry?
    - When did {company} begin to deliver with a lorry?
    - Since what year has {company} done without horses?
    - Until which year did {company} still use a horse?

    Whoever has not paid the dog tax of {town} by {day} loses the dog.
    day: the dog tax of {town}
    - When is the dog tax due in {town}?
    - What is the last day on which one can pay for a dog in {town}?
    - A man in {town} has a dog and little money: until which day can he put off the tax?
    - By what day does {town} want money from those who keep dogs?

    The medicine that {company} sent to {town} had to be used before {date}.
    date: the medicine that {company} sent to {town}
    - Until when was the medicine good that {town} got from {company}?
    - What date stood on the medicine for {town} from {company}?
    - A nurse in {town} takes a bottle from {company} off the shelf: after which day must she throw it away?
    - If the medicine that {town} had from {company} was not to spoil, by what date did one have to take it?

    {surname} the {profession} was made an honorary citizen of {town} in {year}, much too late.
    year: the honour that {town} gave to {surname} the {profession}
    - In which year did {town} honour {surname} the {profession}?
    - When did {surname} the {profession} become an honorary citizen of {town}?
    - Since what year could {surname} the {profession} be called an honorary citizen of {town}?
    - Name the year in which {town} thanked {surname} the {profession} with an honorary title.

    "Never again since {date}," said {person} when somebody offered a glass of wine.
    date: the last glass of wine of {person}
    - When did {person} drink wine for the last time?
    - Since which day has {person} not touched wine?
    - On what date did {person} give up wine?
    - {person} declines a glass of wine: since when has that been so?

    Spare parts for the pumps of {company} can be had no longer than until {year}.
    year: the spare parts for the pumps of {company}
    - In what year do the spare parts for the pumps of {company} run out?
    - Until when can a pump of {company} be repaired?
    - A farmer has an old pump of {company}: up to which year will he get parts?
    - Tell me after which year {company} leaves the owners of its pumps alone.

    The night shift at {company} hands over to the day shift at {time}.
    time: the change of shift at {company}
    - When does the night shift of {company} go home?
    - At what time do the day workers of {company} begin?
    - Until what hour do they work at {company} through the night?
    - A woman waits at the gate of {company} for her husband, who works nights: when will he come?

    On {day}, and on no other day, the monks of {estate} may speak.
    day: the day on which the monks of {estate} may speak
    - When do the monks of {estate} break their silence?
    - On which day can one talk with a monk of {estate}?
    - Somebody hears a monk of {estate} laugh and tell stories: what day must it be?
    - What is the one day of the year without silence at {estate}?

    The last letter of {person} from the front bears the postmark {date}.
    date: the last letter of {person} from the front
    - When was the last letter of {person} posted?
    - With what date did the post stamp the last letter of {person}?
    - After which day did nobody hear from {person} at the front any more?
    - Up to what date can one be sure that {person} was alive at the front?

    Of the two great fairs of {town} only one has survived: the one on {day}.
    day: the fair of {town}
    - When is the fair of {town}?
    - On which day does {town} hold its great fair?
    - A trader wants to sell at the fair of {town}: on what day must he be there?
    - What day of the year brings the traders to {town}?

    {time} was what the stopped watch of {person} showed.
    time: the stopped watch of {person}
    - At what time had the watch of {person} stopped?
    - What did the watch of {person} say when it was found?
    - When did the watch of {person} cease to go?
    - The hands of the watch of {person} do not move: at which hour do they point?

    Version two of the program that steers Project {project} was released on {date}.
    date: version two of the program for Project {project}
    - When could one get the second version of the program for Project {project}?
    - On what date was the program that steers Project {project} renewed?
    - Since which day has the second version been steering Project {project}?
    - What is the release date of version two of the program of Project {project}?

    The mine of {town} has been under water since {year}.
    year: the flooded mine of {town}
    - In which year was the mine of {town} flooded?
    - Since when can nobody work in the mine of {town}?
    - When did water fill the pits of {town}?
    - In what year did the miners of {town} go down for the last time?

    Winter rules apply on the road to {town} from {day} on: no lorry without chains.
    day: the winter rules on the road to {town}
    - From which day on do lorries need chains to get to {town}?
    - When do the winter rules begin on the road to {town}?
    - A lorry has no chains and wants to go to {town}: by what day must it have been there?
    - Do you know on what day it becomes forbidden to drive a lorry without chains to {town}?

    {person} was ordained on {date}, after two failed attempts.
    date: the ordination of {person}
    - When did {person} become a priest?
    - On which day was {person} ordained?
    - Since what date has {person} been allowed to say mass?
    - What is the date of the ordination of {person}?

    Wine from {estate} that was pressed in {year} is sold by the spoonful.
    year: the most precious wine of {estate}
    - Which year gave the most precious wine of {estate}?
    - A collector looks for the best bottles from {estate}: which year should be on the label?
    - When were the grapes picked for the dearest wine of {estate}?
    - In what year did the wine of {estate} turn out so well that one pays for each spoonful?

    Anyone who rings {company} after {time} talks to a machine.
    time: the hour after which a machine answers for {company}
    - Until what time do people answer the telephone at {company}?
    - When does the staff of {company} stop taking calls?
    - Somebody would like to speak with a human at {company}: by what time must he call?
    - From which hour on does a machine answer at {company}?

    The newspaper of {city} has appeared in colour since {date}.
    date: the first coloured issue of the newspaper of {city}
    - Since when has the newspaper of {city} been printed in colour?
    - On which day could the readers of {city} see the first coloured newspaper?
    - Up to what date was the newspaper of {city} black and white?
    - What is the date of the first issue in colour at {city}?
""")
