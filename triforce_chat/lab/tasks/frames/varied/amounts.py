"""What things cost, bring in or weigh, how many there are, and how far it is."""

from triforce_chat.lab.tasks.frames.frame import frames

AMOUNTS = frames("""
    {person} left {big} crowns to the orphans of {town}, and nothing to the family.
    big: the legacy of {person} to the orphans of {town}
    - What did the orphans of {town} get by the will of {person}?
    - How much money did {person} bequeath to the orphans of {town}?
    - {person} has died, and the orphans of {town} are rich: how large is the legacy?
    - Which sum was set aside by {person} for the orphans of {town}?

    {many} pupils go in and out of the school of {town}, and not one of them could name the queen.
    many: the pupils of the school of {town}
    - How many children are taught in {town}?
    - What is the number of pupils in {town}?
    - By how many children is the school of {town} attended?
    - Can you tell me how large the school of {town} is?

    In a good year the orchards of {estate} yield {big} baskets of plums.
    big: the plums of {estate}
    - How many baskets of plums can {estate} harvest?
    - What do the orchards of {estate} bear if the weather is kind?
    - The year was good for fruit: how many baskets were filled at {estate}?
    - How rich is the plum harvest at {estate} in the best of times?

    Somebody bought the violin of {surname} for {big} crowns and never played it.
    big: the price of the violin of {surname}
    - What did the violin of {surname} cost?
    - How much was given for the violin of {surname}?
    - For what sum did the violin of {surname} change hands?
    - The violin of {surname} has a new owner: how many crowns did he spend on it?

    The hospital of {town} has beds for {many} patients, and all of them are full.
    many: the beds of the hospital of {town}
    - How many sick people can the hospital of {town} take in?
    - For how many patients is there room in the hospital of {town}?
    - What is the number of hospital beds in {town}?
    - If every bed in the hospital of {town} is taken, how many people lie there?

    Only {few} of those who sat the examination at {town} passed it.
    few: the candidates who passed at {town}
    - How many candidates were successful at {town}?
    - The examination at {town} was hard: how many got through?
    - What number of people at {town} did not fail?
    - By how many was the examination at {town} passed?

    A loaf of bread, which used to cost a penny, now costs {few} pence in {town}.
    few: the price of bread in {town}
    - What does one pay for a loaf in {town} today?
    - To how many pence has bread risen in {town}?
    - A housewife of {town} goes to the baker for one loaf: how many pence should she take along?
    - How dear is bread in {town}?

    The wheel of the mill at {town} makes {many} turns an hour.
    many: the turns of the mill wheel at {town}
    - How fast does the mill wheel of {town} turn?
    - How many times does the wheel at {town} go round in an hour?
    - What is the hourly number of turns of the wheel at {town}?
    - Tell me how often the mill wheel of {town} goes round while an hour passes.

    From the top of the {building} of {town} one counts {few} villages on a clear day.
    few: the villages that are seen from the {building} of {town}
    - How many villages are in sight from the {building} of {town}?
    - What number of villages can be made out from the roof of the {building} of {town}?
    - The air is clear, and somebody looks down from the {building} of {town}: how many villages does he see?
    - Tell me how many villages lie within view of the {building} of {town}.

    {surname} the {profession} drinks {few} cups of tea a day, against all advice.
    few: the cups of tea that {surname} the {profession} drinks
    - How many cups are emptied daily by {surname} the {profession}?
    - How much tea does {surname} the {profession} need to get through a day?
    - The doctor complains about the tea of {surname} the {profession}: how many cups is it?
    - Can you say how often in a day {surname} the {profession} has the teacup filled?

    Between {town} and the sea the canal passes through {few} locks.
    few: the locks between {town} and the sea
    - How many locks are there on the way from {town} to the sea?
    - A barge leaves {town} for the coast: how often is it raised or lowered?
    - Through how many locks must a boat from {town} go to get to salt water?
    - Say how many locks a boatman finds between the quay of {town} and the coast.

    The cook of {inn} puts {few} eggs into the Easter cake.
    few: the eggs in the Easter cake of {inn}
    - How many eggs does the Easter cake at {inn} take?
    - The hens have stopped laying, and {inn} wants its Easter cake: how many eggs must be bought?
    - What number of eggs is used for the Easter cake at {inn}?
    - With how many eggs do they bake at {inn} for Easter?

    {few} letters from {person} to the minister were needed to bring the matter to court.
    few: the letters of {person} to the minister
    - How often did {person} write to the minister?
    - How many letters did the minister receive from {person}?
    - What was the number of complaints that {person} posted to the minister?
    - Do you know how many times {person} complained to the minister by post?

    To walk around the wood of {estate} takes {big} steps; the steward has tried it.
    big: the way around the wood of {estate}
    - How many steps is it around the wood of {estate}?
    - The steward went once around the wood of {estate}: how many steps did he count?
    - What is the length of the path around the wood of {estate}, in steps?
    - If somebody goes for a walk once around the wood of {estate}, how many steps does that make?

    The cathedral choir of {city} has {few} boys and one girl.
    few: the boys in the cathedral choir of {city}
    - How many boys sing in the cathedral of {city}?
    - Besides a single girl, what number of singers is there in the cathedral choir of {city}?
    - Of how many boys does the choir of {city} consist?
    - I would like to know how many boys belong to the cathedral choir of {city}.

    {company} spends {big} crowns a year on postage alone.
    big: the postage of {company}
    - How much does {company} pay for stamps in a year?
    - What are the yearly costs of {company} for sending letters?
    - How many crowns go from {company} to the post office every year?
    - What does its mail cost {company}?

    The earthquake left {many} families of {city} without a roof.
    many: the families of {city} that lost their homes
    - How many families were homeless in {city} after the earthquake?
    - The earth shook at {city}: how many families had to sleep in the open?
    - What number of families in {city} needed a new home?
    - Tell me how many families of {city} the earthquake made homeless.

    When it woke from its winter sleep, the bear {pet} weighed {many} pounds and was in a bad temper.
    many: the weight of the bear {pet} after the winter
    - How heavy was the bear {pet} in spring?
    - What did {pet} weigh after sleeping all winter?
    - What did the scales show when the bear {pet} stepped on them in spring?
    - Winter is over, and {pet} leaves the den: how many pounds are left of the bear?

    In the last war {town} had to feed {big} soldiers for a whole winter.
    big: the soldiers whom {town} had to feed
    - How many soldiers were quartered on {town} in the last war?
    - For how many soldiers did {town} cook during the winter?
    - What number of troops ate at the cost of {town}?
    - The farmers of {town} complained that they had to keep an army: how large was it?

    {person} has sung {many} songs on the stage without once forgetting a word.
    many: the songs of {person}
    - How many songs has {person} performed?
    - What number of songs did the singer {person} get through without a slip?
    - {person} never forgets a text: in how many songs has that been proved?
    - Say how many times {person} has come to the end of a song without a mistake.

    The subscribers of the newspaper of {town} number {big}, of whom half never pay.
    big: the subscribers of the newspaper of {town}
    - How many people take the newspaper of {town}?
    - To how many subscribers is the newspaper of {town} sent?
    - What is the circulation of the newspaper of {town}?
    - Do you know how many readers have subscribed to the newspaper of {town}?

    For a thousand bricks from {town} one has to give {many} shillings.
    many: the price of a thousand bricks from {town}
    - What do the brickmakers of {town} charge for a thousand?
    - How much is a thousand bricks from {town}?
    - A builder orders a thousand bricks at {town}: how many shillings does he owe?
    - Name the price that {town} wants for a thousand bricks.

    In the fog the foghorn of {town} sounds every {few} seconds.
    few: the foghorn of {town}
    - How often does the foghorn of {town} blow?
    - How many seconds pass between two blasts at {town}?
    - There is fog at {town}: after how many seconds does a sailor hear the horn again?
    - At what intervals does the foghorn of {town} give its sound?

    The rope with which {person} came down the cliff was {many} feet long.
    many: the rope of {person}
    - How long was the rope of the climber {person}?
    - What length of rope did {person} use on the cliff?
    - {person} let down a rope over the edge: how many feet did it measure?
    - Can you tell me how many feet of rope {person} climbed down?

    "Not a crown less than {big}," said the owner of {estate} to the agents.
    big: the price that the owner of {estate} wants
    - For how much is {estate} for sale?
    - What does the owner of {estate} ask for the property?
    - Somebody would like to buy {estate}: how many crowns must be offered?
    - Below which sum will {estate} not be given away?

    {few} goals in one season made {person} the pride of the club.
    few: the goals of {person}
    - How often did the footballer {person} score?
    - How many goals were scored by {person} in the season?
    - What number of goals stands against the name of {person}?
    - The club is proud of {person}: because of how many goals?

    When it snows, {few} men are needed to clear the square of {town}.
    few: the men who clear the square of {town} of snow
    - How many hands does it take to shovel the snow from the square of {town}?
    - Snow has fallen on {town}: how many men does the town call?
    - With how many men is the square of {town} swept in winter?
    - If the square of {town} lies deep in snow, how many people are called out?

    The well at {inn} is {few} yards deep, and its water is as cold as ice.
    few: the depth of the well at {inn}
    - How far down is the water at {inn}?
    - A bucket is let down into the well at {inn}: how many yards of chain are needed?
    - What is the depth of the well at {inn}?
    - Do you know how deep they had to dig at {inn} before they struck water?

    {person} has served {few} years for a crime that somebody else committed.
    few: the years that {person} spent in prison
    - For how many years was {person} locked up although innocent?
    - How long has {person} been in prison?
    - How many years of freedom did the error of the court cost {person}?
    - Tell me for how many years {person} has paid for another's crime.

    Nobody in {city} may keep more than {few} pigeons.
    few: the pigeons that one may keep in {city}
    - How many pigeons does the law of {city} allow?
    - What is the largest number of pigeons that a citizen of {city} can own?
    - In {city} somebody breeds pigeons: at which number must he stop?
    - Up to how many pigeons are permitted in {city}?

    Since yesterday the dam at {town} has let through {big} barrels a minute.
    big: the water that the dam at {town} lets through
    - How much water passes the dam at {town} every minute?
    - What amount of water runs through the dam at {town}, in barrels?
    - How many barrels a minute flow down from the dam at {town}?
    - I would like to know how many barrels escape through the dam at {town} in a minute.

    The translation of the book into {language} runs to {many} pages.
    many: the length of the {language} translation
    - How long is the book in {language}?
    - How many pages does the {language} version have?
    - What number of pages must one turn to read the book in {language}?
    - Somebody reads the book in {language}: on which page does it end?

    As a reward for the wallet {person} was given {few} crowns and a handshake.
    few: the reward of {person}
    - How much did the honest finder {person} receive?
    - What was it worth to {person} to bring back the wallet?
    - {person} found a wallet and returned it: how many crowns did that bring?
    - With what sum was {person} rewarded?

    The cells of {company} last {few} hours before they have to be charged again.
    few: the life of the cells of {company}
    - For how many hours does a battery of {company} give light?
    - After how many hours are the cells of {company} empty?
    - How long do the batteries of {company} hold out?
    - If a lamp runs on cells of {company}, for how many hours will it burn?

    "Wait {few} minutes before you touch the glue of {company}," it says on the tin.
    few: the time that the glue of {company} needs
    - How many minutes does the glue of {company} take to dry?
    - How long must one keep one's fingers off the glue of {company}?
    - Something was mended with the glue of {company}: after how many minutes may it be handled?
    - Tell me how long the glue of {company} stays wet.

    The oil in the engine of the {ship} has to be changed after every {many} hours at sea.
    many: the change of oil on the {ship}
    - How often does the engine of the {ship} get fresh oil?
    - After how many hours is the oil of the {ship} used up?
    - What interval is prescribed for new oil on the {ship}?
    - How many hours at sea does one filling of oil last on the {ship}?

    In the class of {person} at {town} there sat {few} children, on benches for twenty.
    few: the class that {person} taught at {town}
    - How many children did {person} teach at {town}?
    - How large was the class of {person} at {town}?
    - {person} stands before the class at {town}: how many heads are there to count?
    - By how many pupils were the lessons of {person} at {town} attended?
""")
