/* ruler_text: the words and sentences of the RULER-style tasks, written down once for the generator in C
 * (eval/ruler.h) and for the training script, which reads this file with a regular expression:
 * a list begins at `#define RULER_NAME(X) \`, holds entries X(...) and ends at an empty line.
 * The tasks are RULER's (Hsieh et al., 2024); words, questions and answer lines are our own, so that a score
 * here is RULER-style, never a RULER score.
 *
 * The prompt is plain text, no chat template: INTRO "\n" HAYSTACK "\n" QUESTION "\n" PREFIX, and the model
 * continues with " " VALUES "." where several values are separated by ", ".  The task says in which order:
 * niah by appearance in the text; multiquery as asked; vt from the head of the chain on; cwe by first
 * appearance; fwe the most frequent first.
 *
 *   haystack noise    lines of the five noise sentences joined by blanks, a needle or VAR statement on its own line
 *   haystack essay    sentences of a text joined by blanks, the needles between them
 *   haystack needle   needles of other keys, one per line (multikey_2, multikey_3)
 *   cwe               entries "1. word" joined by blanks: ten words 30 times, the others 3 times, shuffled
 *   fwe               words of six random letters joined by blanks, frequencies by Zipf's law (exponent 2);
 *                     the most frequent one is written as dots
 *   qa                "Document 1:" "\n" SENTENCE, separated by an empty line
 *
 *   {key}      adjective-noun, or a uuid in multikey_3
 *   {keys}     one key, or "a, b, c and d" (separators below)
 *   {value}    number: 7 digits, the first not 0; word: a noun; uuid: lower-case version 4 with hyphens;
 *              vt: 5 digits, the first not 0
 *   {name}     5 capital letters;  {source}: the name before it in the chain
 *   {person}   first name, blank, surname;  {town}: start and end without a blank;  {year}: 1800 to 1999 */
#pragma once

/* clang-format off */

/* X(name, text) */
#define RULER_TEMPLATES(X) \
    X(intro_niah, "The text below hides special magic {kinds}. Read it with care: a question about them follows.") \
    X(intro_vt, "In the text below variables hand on a value. Read it with care: a question about them follows.") \
    X(intro_cwe, "In the list below some words occur more often than the others. A question about them follows.") \
    X(intro_fwe, "The text below is written in a code. Read it with care: a question about its words follows.") \
    X(intro_qa, "The documents below tell of people and towns. Read them with care: a question about them follows.") \
    X(needle, "One of the special magic {kinds} for {key} is: {value}.") \
    X(question_one, "What is the special magic {kind} for {keys} in the text above?") \
    X(prefix_one, "The special magic {kind} for {keys} in the text above is:") \
    X(question_many, "What are the special magic {kinds} for {keys} in the text above?") \
    X(prefix_many, "The special magic {kinds} for {keys} in the text above are:") \
    X(vt_first, "VAR {name} = {value}") \
    X(vt_next, "VAR {name} = VAR {source}") \
    X(question_vt, "Which variables hold the value {value} in the text above?") \
    X(prefix_vt, "The variables that hold the value {value} in the text above are:") \
    X(cwe_entry, "{number}. {word}") \
    X(question_cwe, "Which ten words occur most often in the list above?") \
    X(prefix_cwe, "The ten words that occur most often in the list above are:") \
    X(fwe_dots, "...") \
    X(question_fwe, "Leaving the dots aside, which three words occur most often in the text above?") \
    X(prefix_fwe, "The three words that occur most often in the text above are:") \
    X(qa_heading, "Document {number}:") \
    X(qa_person, "{person} comes from {town}, was born in {year} and works as a {job}.") \
    X(qa_town, "{town} is a town in {region}, known for its {noun} and its {noun2}.") \
    X(question_qa_town, "Which town does {person} come from?") \
    X(prefix_qa_town, "The town that {person} comes from is:") \
    X(question_qa_year, "In which year was {person} born?") \
    X(prefix_qa_year, "The year in which {person} was born is:") \
    X(question_qa_job, "What does {person} work as?") \
    X(prefix_qa_job, "What {person} works as is:") \
    X(question_qa_region, "In which region is the town that {person} comes from?") \
    X(prefix_qa_region, "The region of the town that {person} comes from is:")

/* X(name, text): between keys and before the last one; before, between and after the values of an answer */
#define RULER_SEPARATORS(X) \
    X(keys, ", ") \
    X(last_key, " and ") \
    X(answer_begin, " ") \
    X(answer, ", ") \
    X(answer_end, ".")

/* X(name, singular, plural): kinds of needle values */
#define RULER_KINDS(X) \
    X(number, "number", "numbers") \
    X(word, "word", "words") \
    X(uuid, "uuid", "uuids")

/* X(sentence) */
#define RULER_NOISE(X) \
    X("The grass is green.") \
    X("The sky is blue.") \
    X("The sun is yellow.") \
    X("Here we go.") \
    X("There and back again.")

/* X(word), 256 */
#define RULER_ADJECTIVES(X) \
    X("able") X("absent") X("active") X("adult") X("agile") X("airy") X("alien") X("amber") X("ample") \
    X("ancient") X("angry") X("arctic") X("arid") X("ashen") X("autumn") X("awake") X("bald") X("bare") \
    X("basic") X("bent") X("big") X("black") X("bland") X("blank") X("bleak") X("blind") X("blunt") X("bold") \
    X("bony") X("brave") X("brief") X("brisk") X("broad") X("broken") X("bronze") X("brown") X("calm") \
    X("careful") X("casual") X("central") X("certain") X("cheerful") X("chief") X("chilly") X("civil") \
    X("clean") X("clever") X("close") X("cloudy") X("clumsy") X("coarse") X("common") X("complex") X("cool") \
    X("copper") X("correct") X("costly") X("cozy") X("crisp") X("crooked") X("cruel") X("curly") X("damp") \
    X("daring") X("dark") X("dear") X("dense") X("dim") X("direct") X("distant") X("dizzy") X("dry") X("dull") \
    X("dusty") X("eager") X("early") X("elastic") X("elder") X("elegant") X("empty") X("equal") X("faint") \
    X("fair") X("faithful") X("false") X("famous") X("fast") X("fatal") X("feeble") X("fertile") X("fierce") \
    X("fine") X("firm") X("flat") X("fluffy") X("foggy") X("formal") X("fragile") X("frank") X("free") \
    X("fresh") X("frosty") X("frozen") X("full") X("funny") X("fuzzy") X("giant") X("glad") X("global") \
    X("golden") X("good") X("grand") X("grave") X("gray") X("great") X("greedy") X("grim") X("gross") \
    X("hairy") X("handy") X("happy") X("harsh") X("hasty") X("heavy") X("hidden") X("high") X("holy") \
    X("honest") X("hot") X("huge") X("human") X("hungry") X("icy") X("ideal") X("idle") X("inner") X("joyful") \
    X("keen") X("kind") X("large") X("late") X("lean") X("level") X("light") X("little") X("lively") \
    X("lonely") X("long") X("loose") X("loud") X("lovely") X("loyal") X("lucky") X("lunar") X("mad") \
    X("magnetic") X("major") X("mellow") X("merry") X("mild") X("minor") X("modern") X("modest") X("moist") \
    X("muddy") X("mute") X("nasty") X("naval") X("neat") X("nervous") X("new") X("noble") X("noisy") \
    X("normal") X("northern") X("numb") X("old") X("open") X("orange") X("oval") X("pale") X("perfect") \
    X("plain") X("pleasant") X("polite") X("poor") X("pure") X("purple") X("quick") X("quiet") X("rapid") \
    X("raw") X("ready") X("red") X("regal") X("rich") X("ripe") X("rough") X("round") X("royal") X("rude") \
    X("rusty") X("sacred") X("sad") X("safe") X("salty") X("scarce") X("secret") X("serious") X("shallow") \
    X("sharp") X("short") X("shy") X("silent") X("silver") X("simple") X("slow") X("small") X("smart") \
    X("smooth") X("soft") X("solid") X("sour") X("southern") X("spare") X("steady") X("stiff") X("strange") \
    X("strict") X("strong") X("sturdy") X("sweet") X("swift") X("tall") X("tame") X("tender") X("thin") \
    X("tidy") X("tight") X("tiny") X("tired") X("tropical") X("true") X("urban") X("vague") X("vast") \
    X("warm") X("weak") X("western") X("wet") X("white") X("wild") X("wise") X("wooden") X("worthy") \
    X("yellow")

/* X(word), 512; none is an adjective above */
#define RULER_NOUNS(X) \
    X("acorn") X("actor") X("airport") X("album") X("alley") X("almond") X("anchor") X("angle") X("ankle") \
    X("answer") X("ant") X("apple") X("apron") X("arch") X("arm") X("armor") X("arrow") X("artist") X("ash") \
    X("atlas") X("atom") X("attic") X("aunt") X("author") X("axe") X("baby") X("badge") X("bag") X("baker") \
    X("balcony") X("ball") X("balloon") X("band") X("bank") X("banner") X("bar") X("bark") X("barn") \
    X("barrel") X("basin") X("bat") X("bath") X("battle") X("bay") X("beach") X("bead") X("beak") X("beam") \
    X("bear") X("beard") X("bed") X("bee") X("beetle") X("bell") X("belt") X("bench") X("bicycle") X("bird") \
    X("biscuit") X("blade") X("blanket") X("blossom") X("board") X("boat") X("bolt") X("bone") X("book") \
    X("boot") X("bottle") X("bow") X("bowl") X("boy") X("bracelet") X("brain") X("branch") X("bread") \
    X("breeze") X("brick") X("bridge") X("brother") X("brush") X("bucket") X("bud") X("bug") X("builder") \
    X("bull") X("bus") X("butter") X("button") X("cabin") X("cable") X("cactus") X("cage") X("cake") \
    X("camel") X("camp") X("canal") X("candle") X("candy") X("cannon") X("canoe") X("canvas") X("cap") \
    X("car") X("card") X("carpet") X("carrot") X("cart") X("castle") X("cat") X("cave") X("ceiling") \
    X("cellar") X("chain") X("chair") X("chalk") X("chapel") X("chapter") X("cheese") X("chess") X("chest") \
    X("chicken") X("child") X("chimney") X("church") X("circle") X("circus") X("clay") X("cliff") X("clock") \
    X("cloth") X("cloud") X("clover") X("club") X("coal") X("coast") X("coat") X("coin") X("collar") X("comb") \
    X("comet") X("compass") X("coral") X("cord") X("corn") X("corner") X("cottage") X("cotton") X("couch") \
    X("cousin") X("crab") X("cradle") X("crane") X("crayon") X("cricket") X("crow") X("crown") X("crystal") \
    X("curtain") X("cushion") X("dagger") X("dance") X("daughter") X("dawn") X("deer") X("desert") \
    X("diamond") X("dice") X("dinner") X("doctor") X("dog") X("doll") X("dolphin") X("donkey") X("dove") \
    X("dragon") X("drawer") X("dream") X("dress") X("drum") X("duck") X("dust") X("ear") X("earth") X("east") \
    X("echo") X("edge") X("egg") X("elbow") X("elephant") X("engine") X("envelope") X("evening") X("eye") \
    X("face") X("factory") X("falcon") X("fan") X("farm") X("farmer") X("father") X("feast") X("feather") \
    X("fence") X("fern") X("field") X("fig") X("finger") X("fire") X("fish") X("flag") X("flame") X("flask") \
    X("floor") X("flour") X("flower") X("flute") X("fly") X("forest") X("fork") X("fort") X("fox") X("frame") \
    X("friend") X("frog") X("fruit") X("garage") X("garden") X("garlic") X("ghost") X("giraffe") X("girl") \
    X("glass") X("globe") X("glove") X("goat") X("goose") X("grape") X("grass") X("guard") X("guest") \
    X("guitar") X("gull") X("hall") X("hammer") X("harbor") X("harp") X("hat") X("hawk") X("hay") X("heart") \
    X("hedge") X("heel") X("hen") X("herb") X("hero") X("hill") X("hinge") X("hive") X("honey") X("hook") \
    X("horn") X("horse") X("hotel") X("hour") X("house") X("ice") X("inn") X("insect") X("iron") X("island") \
    X("ivory") X("ivy") X("jacket") X("jar") X("jewel") X("jug") X("juice") X("jungle") X("kettle") X("key") \
    X("king") X("kitchen") X("kite") X("knee") X("knife") X("knight") X("knot") X("ladder") X("lady") \
    X("lake") X("lamb") X("lantern") X("lawn") X("leaf") X("leather") X("lemon") X("letter") X("library") \
    X("lily") X("lion") X("lizard") X("lobster") X("lock") X("log") X("lute") X("machine") X("magnet") \
    X("mango") X("map") X("maple") X("marble") X("market") X("mask") X("mast") X("meadow") X("medal") \
    X("melon") X("merchant") X("metal") X("mill") X("mine") X("mirror") X("moon") X("morning") X("mother") \
    X("motor") X("mountain") X("mouse") X("mouth") X("mud") X("mushroom") X("music") X("nail") X("neck") \
    X("needle") X("nephew") X("nest") X("net") X("north") X("nose") X("note") X("novel") X("nurse") X("nut") \
    X("oak") X("oar") X("ocean") X("office") X("oil") X("olive") X("onion") X("opera") X("orchard") X("organ") \
    X("oven") X("owl") X("ox") X("oyster") X("paddle") X("page") X("paint") X("palace") X("pan") X("paper") \
    X("parade") X("park") X("parrot") X("path") X("pea") X("peach") X("pear") X("pearl") X("pebble") X("pen") \
    X("pencil") X("pepper") X("piano") X("picture") X("pigeon") X("pillow") X("pilot") X("pine") X("pipe") \
    X("pirate") X("plant") X("plum") X("pocket") X("poet") X("pole") X("pond") X("pony") X("poppy") X("porch") \
    X("potato") X("powder") X("priest") X("prince") X("prison") X("puddle") X("pump") X("puppet") X("quill") \
    X("rabbit") X("radio") X("raft") X("rail") X("rain") X("raven") X("ribbon") X("ring") X("river") X("road") \
    X("robe") X("rock") X("rocket") X("roof") X("room") X("rope") X("rose") X("rug") X("ruler") X("saddle") \
    X("sail") X("sailor") X("salad") X("salt") X("sand") X("school") X("scissors") X("screw") X("sea") \
    X("seal") X("seed") X("shark") X("sheep") X("shelf") X("shell") X("shepherd") X("ship") X("shirt") \
    X("shoe") X("shore") X("shovel") X("sister") X("skirt") X("sky") X("sled") X("snail") X("soap") X("sock") \
    X("soldier") X("song") X("soup") X("sparrow") X("spear") X("spider") X("spring") X("squirrel") X("stable") \
    X("star") X("statue") X("stone") X("storm") X("stove") X("street") X("sugar") X("sun") X("swan") \
    X("sword") X("table") X("tailor") X("teacher") X("tent") X("theater") X("thorn") X("thread") X("throne") \
    X("thumb") X("thunder") X("tiger") X("tomato") X("tooth") X("tower") X("town") X("toy") X("train") \
    X("tree") X("trumpet") X("tunnel") X("turtle") X("uncle") X("valley") X("vase") X("velvet") X("village") \
    X("vine") X("wagon") X("wall") X("walnut") X("water") X("wave") X("wheat") X("wheel") X("whistle") \
    X("window") X("wing") X("winter") X("wolf") X("wood") X("wool") X("yard")

/* X(word), 80 */
#define RULER_FIRST_NAMES(X) \
    X("Abel") X("Ada") X("Agnes") X("Alan") X("Albert") X("Alice") X("Amos") X("Arthur") X("Ben") X("Bertha") \
    X("Boris") X("Bruno") X("Carl") X("Carmen") X("Clara") X("Cora") X("Daniel") X("David") X("Dora") \
    X("Edgar") X("Edwin") X("Ella") X("Emil") X("Emma") X("Erik") X("Esther") X("Eva") X("Flora") X("Frank") \
    X("Fred") X("George") X("Grace") X("Greta") X("Hannah") X("Hazel") X("Helen") X("Henry") X("Hugo") \
    X("Ida") X("Irene") X("Ivan") X("Jack") X("Jane") X("Jonas") X("Julia") X("Karen") X("Laura") X("Lewis") \
    X("Lily") X("Louis") X("Lucy") X("Mabel") X("Marcus") X("Maria") X("Mary") X("Max") X("Mona") X("Nina") \
    X("Nora") X("Oliver") X("Oscar") X("Otto") X("Paul") X("Peter") X("Ralph") X("Robert") X("Rosa") \
    X("Samuel") X("Sarah") X("Simon") X("Sonia") X("Stella") X("Susan") X("Theo") X("Ursula") X("Vera") \
    X("Victor") X("Viola") X("Walter") X("William")

/* X(word), 96 */
#define RULER_SURNAMES(X) \
    X("Abbott") X("Adams") X("Archer") X("Baker") X("Barlow") X("Barnes") X("Bennett") X("Bishop") X("Blake") \
    X("Bolton") X("Bradley") X("Briggs") X("Brooks") X("Burton") X("Butler") X("Carter") X("Chapman") \
    X("Clarke") X("Cole") X("Collins") X("Cooper") X("Crawford") X("Dalton") X("Davies") X("Dawson") \
    X("Dixon") X("Doyle") X("Drake") X("Eaton") X("Elliott") X("Ellis") X("Evans") X("Farmer") X("Fisher") \
    X("Fletcher") X("Foster") X("Fowler") X("Gardner") X("Gibson") X("Gordon") X("Graham") X("Grant") \
    X("Griffin") X("Hale") X("Hammond") X("Harding") X("Harper") X("Hayes") X("Holmes") X("Hudson") \
    X("Hughes") X("Hunter") X("Jennings") X("Jordan") X("Keller") X("Kennedy") X("Lambert") X("Lawson") \
    X("Mason") X("Miller") X("Morgan") X("Morris") X("Murray") X("Nelson") X("Newton") X("Norris") X("Osborn") \
    X("Palmer") X("Parker") X("Pearson") X("Perry") X("Porter") X("Potter") X("Quinn") X("Reed") X("Reynolds") \
    X("Robson") X("Russell") X("Sanders") X("Shaw") X("Sheldon") X("Spencer") X("Stone") X("Taylor") \
    X("Thornton") X("Tucker") X("Turner") X("Wallace") X("Walsh") X("Warren") X("Watson") X("Webb") \
    X("Weston") X("Wheeler") X("Winter") X("Wright")

/* X(part), 48 */
#define RULER_TOWN_STARTS(X) \
    X("Ash") X("Barn") X("Black") X("Bridge") X("Brook") X("Burn") X("Cliff") X("Cold") X("Crow") X("Deer") \
    X("Elm") X("Fair") X("Fern") X("Glen") X("Gold") X("Grand") X("Green") X("Hart") X("Hazel") X("High") \
    X("Kings") X("Lake") X("Long") X("Maple") X("Marsh") X("Mill") X("New") X("North") X("Oak") X("Over") \
    X("Pine") X("Queens") X("Red") X("River") X("Rock") X("Rose") X("Salt") X("Silver") X("South") X("Star") \
    X("Stone") X("Strat") X("Swan") X("Thorn") X("West") X("White") X("Willow") X("Winter")

/* X(part), 31 */
#define RULER_TOWN_ENDS(X) \
    X("bank") X("borough") X("bourne") X("bridge") X("burgh") X("bury") X("by") X("cester") X("combe") \
    X("cote") X("dale") X("den") X("field") X("ford") X("gate") X("ham") X("haven") X("hurst") X("leigh") \
    X("ley") X("mere") X("minster") X("mouth") X("pool") X("port") X("shaw") X("stead") X("ton") X("wall") \
    X("wick") X("worth")

/* X(word), 24 */
#define RULER_REGIONS(X) \
    X("Alvaria") X("Belmora") X("Caldria") X("Dorvane") X("Elvast") X("Fenmark") X("Galdor") X("Harrowland") \
    X("Istria") X("Jorvik") X("Kestria") X("Lorvane") X("Mirland") X("Norvane") X("Ostmark") X("Pelland") \
    X("Quenmark") X("Rothia") X("Sarland") X("Tolvane") X("Ulmark") X("Valdria") X("Westria") X("Zorland")

/* X(word), 48: each with the article "a" */
#define RULER_JOBS(X) \
    X("baker") X("barber") X("blacksmith") X("bookbinder") X("butcher") X("carpenter") X("clerk") X("cobbler") \
    X("cooper") X("dentist") X("diver") X("driver") X("fisherman") X("florist") X("gardener") X("glazier") \
    X("hatter") X("hunter") X("innkeeper") X("jeweller") X("lawyer") X("librarian") X("locksmith") X("mason") \
    X("miller") X("miner") X("nurse") X("painter") X("pilot") X("plumber") X("poet") X("porter") X("potter") \
    X("printer") X("saddler") X("sailor") X("shepherd") X("singer") X("smith") X("surgeon") X("surveyor") \
    X("tailor") X("tanner") X("teacher") X("watchmaker") X("weaver") X("welder") X("writer")

/* clang-format on */
