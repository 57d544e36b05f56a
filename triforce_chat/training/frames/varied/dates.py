"""Years, days and hours."""

from triforce_chat.training.frames.frame import frames

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
""")
