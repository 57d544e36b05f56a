"""People as answers: what they did, what was done to them, and whose something is."""

from triforce_chat.lab.tasks.frames.frame import frames

PEOPLE = frames("""
    {person} gave a kidney so that {person2} might live.
    person: the kidney that saved {person2}
    - To whom does {person2} owe a kidney?
    - Who was the donor for {person2}?
    - {person2} lives with a kidney from somebody else: from whom?
    - Whose kidney was given to {person2}?

    Since the baker fell ill, the ovens of {inn} have been looked after by {person}.
    person: the ovens of {inn}
    - Who stands at the ovens of {inn} in place of the baker?
    - By whom has the baker of {inn} been replaced?
    - The baker of {inn} is ill: who sees to the bread?
    - Name the person who keeps the ovens of {inn} hot now.

    "Ask {person}," they say at {company} when a machine stops.
    person: the help with machines at {company}
    - Whom do they turn to at {company} if a machine does not run?
    - A machine of {company} has stopped: who is called?
    - Who understands the machines of {company} better than anybody?
    - Whose advice do they seek at {company} if an engine stands still?

    {person} bought the barge of {person2} without having seen it.
    person: the buyer of the barge of {person2}
    - To whom did {person2} sell a barge?
    - Who is the new owner of the barge of {person2}?
    - From {person2} somebody got a barge that he had never looked at. Who?
    - Who acquired the barge of {person2} unseen?

    It is {person}, who never says a word, that cuts the hedges of {estate}.
    person: the hedges of {estate}
    - Who trims the hedges of {estate}?
    - Whose shears keep the hedges of {estate} in shape?
    - By whom are the hedges of {estate} kept low?
    - The hedges of {estate} have grown too high: who should have come?

    At the trial of {surname} the only witness was {person}.
    person: the witness at the trial of {surname}
    - Who gave evidence at the trial of {surname}?
    - On whose word did the trial of {surname} depend?
    - Whom did the court hear as a witness against {surname}?
    - {surname} is on trial: who alone can say what happened?

    {person} was refused a visa for {city}, and {person2} got one.
    person: the person who was refused a visa for {city}
    - Who may not travel to {city}?
    - Who did not get a visa for {city}?
    - Whose application for a visa to {city} was turned down?
    - To whom did {city} deny a visa?

    All passengers of the coach to {town} were unhurt except {person}.
    person: the accident of the coach to {town}
    - Who was injured in the coach to {town}?
    - The coach to {town} overturned: who was hurt?
    - Which passenger of the coach to {town} needed a doctor?
    - Name the passenger to {town} who did not come away unhurt.

    Of the three doctors of {town}, only {person} makes calls at night.
    person: the doctor of {town} who makes calls at night
    - Which doctor comes after dark in {town}?
    - Somebody in {town} is taken ill at midnight: which doctor will come?
    - Whom do the sick of {town} send for at night?
    - Who is the one doctor of {town} that gets up at night?

    {person} missed the penalty, and that is why {town} lost the final.
    person: the penalty that was missed for {town}
    - Who shot wide in the final of {town}?
    - Because of whom did {town} not win the final?
    - {town} lost the final through a missed penalty: whose was it?
    - Whom do the people of {town} hold to blame for the lost final?

    The weather report for {town} is read by {person}, whatever the weather.
    person: the weather report for {town}
    - Whose voice tells {town} about rain and sunshine?
    - Who reads out the weather for {town}?
    - The radio announces snow for {town}: who is speaking?
    - From whom does {town} hear what the weather will be?

    It was to {person} that the general handed the keys of {town}.
    person: the keys of {town} that the general handed over
    - Who received the keys of {town}?
    - To whom did the general give the keys of {town}?
    - Into whose hands did the keys of {town} pass?
    - The general no longer had the keys of {town}: who had them?

    On the photograph from {estate} the figure with the dog is {person}.
    person: the figure with the dog on the photograph from {estate}
    - Who has a dog in the picture from {estate}?
    - What is the name of the one who holds a dog on the photograph from {estate}?
    - There is a dog on the photograph from {estate}: who is with it?
    - Whom does the photograph from {estate} show beside a dog?

    Every seat in the bus to {town} was taken, and {person} had to stand.
    person: the passenger to {town} who had to stand
    - Who found no seat on the way to {town}?
    - The bus to {town} was full: for whom was there no place to sit?
    - Which passenger to {town} travelled standing?
    - Do you know who got no seat in the bus to {town}?

    Both the {profession} of {town} and the priest were bribed by {person}.
    person: the bribe of the {profession} of {town}
    - From whom did the {profession} of {town} take money?
    - Who bribed the {profession} of {town}?
    - Whose bribe did the {profession} of {town} accept?
    - The {profession} of {town} had been paid to keep quiet: by whom?

    When the vote was taken at {company}, {person} alone raised no hand.
    person: the vote at {company}
    - Who did not vote for the plan at {company}?
    - Whose hand stayed down at {company}?
    - All but one agreed at {company}: who did not?
    - By whom was the plan of {company} not supported?

    {person} crossed {river} on stilts to settle a bet.
    person: the crossing of {river} on stilts
    - Who walked through {river} on stilts?
    - By whom was {river} crossed on stilts?
    - Somebody bet that one can get over {river} on stilts: who proved it?
    - Whose stilts carried a person across {river}?

    {person} grew the largest leek that {town} had ever seen.
    person: the largest leek of {town}
    - Whose was the largest leek of {town}?
    - In whose garden did the giant leek of {town} grow?
    - By whom was the largest leek of {town} raised?
    - All of {town} marvelled at a leek: who had grown it?

    Under oath {person2} named {person} as the one who had set fire to the barn.
    person: whom {person2} accused of the fire
    - Whom did {person2} accuse of the fire in the barn?
    - Who burned down the barn, if {person2} told the court the truth?
    - {person2} swore an oath and said who had lit the fire: who was it?
    - Against whom did {person2} speak in the matter of the burnt barn?

    The ice rink of {town} was paid for by {person}, who cannot skate.
    person: the money for the ice rink of {town}
    - Who gave the money for the ice rink of {town}?
    - At whose cost does {town} have an ice rink?
    - To whose generosity do the skaters of {town} owe their rink?
    - {town} could not afford an ice rink: who paid?

    Dr. {surname}, not the midwife, brought the twins of {person} into the world.
    surname: the birth of the twins of {person}
    - Which doctor was there when the twins of {person} were born?
    - Who was the doctor at the birth of the twins of {person}?
    - The twins of {person} were on their way: which doctor came?
    - Tell me the name of the doctor who delivered the twins of {person}.

    {person} called in the debt of {person2} on Christmas Eve.
    person: the creditor of {person2}
    - Who asked {person2} for money on Christmas Eve?
    - To whom did {person2} owe money?
    - Who had lent money to {person2} and wanted it back?
    - On Christmas Eve there was a knock, and {person2} was told to pay: by whom?

    Of the seven apprentices of {surname} the {profession} only {person} stayed to the end.
    person: the apprentice who stayed with {surname} the {profession}
    - Which apprentice did not run away from {surname} the {profession}?
    - Who finished an apprenticeship with {surname} the {profession}?
    - Six apprentices left {surname} the {profession}: who did not?
    - If only one apprentice learnt the whole trade from {surname} the {profession}, who was it?

    {person} reads the Sunday sermon in {town} whenever the priest has lost his voice.
    person: the sermon in {town} when the priest is hoarse
    - Who stands in for the priest of {town}?
    - The priest of {town} is hoarse: by whom is the sermon read?
    - Whom do the faithful of {town} hear on a Sunday on which the priest cannot speak?
    - Who preaches in {town} if the priest cannot make himself heard?

    "My whole library goes to {person}," {surname} wrote at the foot of the will.
    person: the library of {surname}
    - To whom did {surname} leave the library?
    - Who gets the books of {surname}?
    - Whose are the books of {surname} now?
    - {surname} has died: who may come for the books?

    {person} was fined because the cellar of {inn} was full of rats.
    person: the fine for the rats of {inn}
    - Who was punished for the rats at {inn}?
    - Rats were found at {inn}: who had to pay?
    - Whom did the inspectors hold responsible for the rats of {inn}?
    - By whom was the fine paid that the rats of {inn} had caused?

    Nobody could solve the riddle of {estate} until {person} came.
    person: the riddle of {estate}
    - Who found the answer to the riddle of {estate}?
    - By whom was the riddle of {estate} solved?
    - Before whose arrival was the riddle of {estate} a mystery?
    - Whose cleverness got to the bottom of the riddle of {estate}?
""")
