"""People and firms, asked for by "whose", "by whom" and "from whom" as well."""

from triforce_chat.lab.tasks.frames.frame import frames

NAMES = frames("""
    It was {person} who taught the children of {estate} to read.
    person: the reading lessons at {estate}
    - From whom did the children of {estate} learn to read?
    - Whose pupils were the children of {estate}?
    - Who gave lessons to the children of {estate}?
    - By whom were the children of {estate} taught?

    {surname} the {profession} calls the dog {pet}, though it listens to nobody.
    pet: the dog of {surname} the {profession}
    - What is the name of the dog that {surname} the {profession} has?
    - Which name did {surname} the {profession} choose for the dog?
    - The dog of {surname} the {profession} has run away: what name should one shout?
    - By what name is the dog of {surname} the {profession} called?

    In the saddle of {pet} sat {person}, pale and determined.
    person: the rider of {pet}
    - Who rode {pet}?
    - By whom was {pet} ridden?
    - What was the rider of {pet} called?
    - On the back of {pet} somebody sat. Who was it?

    All the coal that {company} burns is bought from {company2}.
    company2: the coal of {company}
    - Who delivers the coal to {company}?
    - From which firm does {company} get its coal?
    - Whose coal is burnt at {company}?
    - By whom is {company} supplied with coal?

    The lawsuit over {estate} ended badly for {person}.
    person: the lawsuit over {estate}
    - Who lost the lawsuit over {estate}?
    - Against whom did the court decide in the matter of {estate}?
    - The judges have spoken about {estate}: whom does the verdict disappoint?
    - By whom was the case about {estate} lost?

    The nameless letters to the {profession} of {town} came from the pen of {person}.
    person: the nameless letters to the {profession} of {town}
    - Who wrote the anonymous letters to the {profession} of {town}?
    - By whom were the anonymous letters written that the {profession} of {town} got?
    - Whose hand is to be seen in the nameless letters to the {profession} of {town}?
    - The {profession} of {town} gets letters without a name: from whom?

    One half of {inn} belongs to {person}, the other half to the bank.
    person: the owner of one half of {inn}
    - Which person owns half of {inn}?
    - Whose is the half of {inn} that the bank does not own?
    - To whom does {inn} belong besides the bank?
    - With whom does the bank have to agree about {inn}?

    {person} christened the {ship} with a bottle of cider.
    person: the christening of the {ship}
    - Who gave the {ship} her name?
    - By whom was the {ship} christened?
    - A bottle broke on the bow of the {ship}: who had thrown it?
    - Whose was the honour of naming the {ship}?

    How the brandy of {town} is made, {person} alone can tell.
    person: the recipe of the brandy of {town}
    - Who knows the recipe of the brandy of {town}?
    - With whom would the secret of the brandy of {town} die?
    - Whom must one ask how the brandy of {town} is distilled?
    - By whom is the secret of the brandy of {town} kept?

    For fifty years the clock of {town} has been wound by {person}.
    person: the winding of the clock of {town}
    - Who winds the clock of {town}?
    - Whose task is it to keep the clock of {town} going?
    - The clock of {town} has stopped: who should have wound it?
    - Who looks after the clock of {town}?

    The orphan {person} was brought up by {person2}.
    person2: the childhood of the orphan {person}
    - Who raised the orphan {person}?
    - In whose care was the orphan {person} as a child?
    - Whose foster child was {person}?
    - To whom did {person} owe an upbringing?

    The idea of Project {project} came to {person} in the bath.
    person: the first idea of Project {project}
    - Who had the idea of Project {project}?
    - Whose brainchild is Project {project}?
    - By whom was Project {project} first thought of?
    - In whose head did Project {project} begin?

    They still curse {person} in {town} for selling the common.
    person: the sale of the common of {town}
    - Who sold the common of {town}?
    - By whom was the common of {town} given away for money?
    - Whose fault is it that {town} no longer has a common?
    - The people of {town} have lost their common: whom do they blame?

    The main square of {city} bears the name of {person}.
    person: the name of the main square of {city}
    - After whom is the main square of {city} called?
    - Which person is honoured by the main square of {city}?
    - Whose name can be read on the signs of the main square of {city}?

    Each morning {person} brings the bread up to {estate}.
    person: the bread of {estate}
    - Who delivers the bread to {estate}?
    - Whose bread do they eat at {estate}?
    - From whom does {estate} get its bread?
    - At {estate} there was no bread this morning: who did not come?

    The attic in {street} has been let to {person}.
    person: the attic in {street}
    - Who is the tenant of the attic in {street}?
    - By whom is the attic in {street} rented?
    - Who lives under the roof in {street}?
    - Whose home is the attic in {street}?

    As a spy {person} went by the name of {surname2}.
    surname2: the false name of {person}
    - Under which name did the spy {person} work?
    - Which false name had {person} assumed?
    - What was the alias of {person}?
    - The spy {person} signs a report: with what name?

    At the ball of {town} {person} chose {person2} for the first dance.
    person2: the first dance of {person} at the ball of {town}
    - With whom did {person} open the ball of {town}?
    - Who was the partner of {person} at the ball of {town}?
    - Whom did {person} lead to the floor first at the ball of {town}?

    The crew of the {ship} rose against the captain, with {person} at their head.
    person: the mutiny on the {ship}
    - Who led the mutiny on the {ship}?
    - By whom was the crew of the {ship} led against the captain?
    - Under whose lead did the sailors of the {ship} mutiny?
    - The ringleader on the {ship}: who was it?
""")
