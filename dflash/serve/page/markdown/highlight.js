// Colours for code: comments, strings, numbers, keywords and names that are called, of the languages models write most.

const words = (text) => new Set(text.split(" "));

const C_WORDS =
  "auto break case catch class const constexpr continue default delete do double else enum extern false final float for goto if " +
  "inline int long namespace new nullptr private protected public return short signed sizeof static struct switch template this " +
  "throw true try typedef typename union unsigned using virtual void volatile while bool char abstract extends implements " +
  "import interface package super synchronized throws boolean byte null override string var async await in is foreach get set " +
  "base object readonly internal sealed";
const JS_WORDS =
  "abstract any as async await boolean break case catch class const continue debugger declare default delete do else enum export " +
  "extends false finally for from function get if implements import in instanceof interface keyof let new null number of private " +
  "protected public readonly return set static string super switch this throw true try type typeof undefined var void while with yield";

/** Families of languages: marks of comments, whether quotes of three kinds make strings, and keywords. */
const FAMILIES = [
  ["python py python3 ipython pyi", { line: "#", triple: true, words: "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield" }],
  ["javascript js jsx typescript ts tsx mjs cjs node", { line: "//", block: true, tick: true, words: JS_WORDS }],
  ["c h cpp c++ cc hpp cuda cu java cs csharp c# objc scala php", { line: "//", block: true, words: C_WORDS + " __global__ __device__ __shared__ __host__ echo function" }],
  ["rust rs", { line: "//", block: true, words: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while Some None Ok Err" }],
  ["go golang", { line: "//", block: true, tick: true, words: "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var true false nil string int error bool" }],
  ["swift kotlin kt dart", { line: "//", block: true, words: "as break case catch class continue data default defer do else enum extension false final for fun func guard if import in init interface internal is let nil null object open override private protocol public return self static struct super switch this throw throws true try val var when where while" }],
  ["bash sh shell zsh console fish dockerfile makefile make", { line: "#", shell: true, words: "if then else elif fi for in do done while until case esac function return exit export local source set unset echo cd sudo FROM RUN COPY CMD ENV WORKDIR ENTRYPOINT" }],
  ["sql sqlite mysql postgresql", { line: "--", block: true, loose: true, words: "select from where insert into values update set delete create table drop alter add primary key foreign references join left right inner outer full on group by order having limit offset as and or not null is in like between distinct union all case when then else end count sum avg min max desc asc index view with" }],
  ["json jsonc json5", { line: "//", words: "true false null" }],
  ["yaml yml toml ini conf", { line: "#", words: "true false null yes no on off" }],
  ["ruby rb perl r julia jl elixir ex", { line: "#", words: "and begin break case class def do else elsif end ensure false for function if in module my next nil not or print puts raise require rescue return self sub then true unless until use when while yield" }],
  ["css scss less", { block: true, words: "important" }],
  ["lua haskell hs", { line: "--", words: "and break case class data do else elseif end false for function if import in instance let local module nil not of or repeat return then true type until where while" }],
  ["html xml svg vue", { markup: true, words: "" }],
];

const GRAMMARS = new Map();
for (const [names, family] of FAMILIES) {
  const grammar = { ...family, words: words(family.words), pattern: null };
  for (const name of names.split(" ")) GRAMMARS.set(name, grammar);
}

/** Return the pattern that finds the next part of a language to colour. */
function patternOf({ line, block, triple, tick, shell, markup }) {
  const parts = [];
  if (markup) parts.push("(?<comment><!--[^]*?(?:-->|$))", "(?<key></?[\\w:-]+|/?>)", "(?<string>\"[^\"\\n]*\"|'[^'\\n]*')");
  else {
    const comments = [line && `${shell ? "(?<![\\w$\\\\{])" : ""}${line}[^\\n]*`, block && "/\\*[^]*?(?:\\*/|$)"];
    const strings = [triple && "\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)", tick && "`(?:[^`\\\\]|\\\\[^])*(?:`|$)"];
    strings.push('"(?:[^"\\\\\\n]|\\\\[^])*"?', "'(?:[^'\\\\\\n]|\\\\[^])*'?");
    parts.push(`(?<comment>${comments.filter(Boolean).join("|")})`, `(?<string>${strings.filter(Boolean).join("|")})`);
    parts.push("(?<number>\\b(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*\\.?\\d*(?:[eE][+-]?\\d+)?)\\w*)", "(?<word>[A-Za-z_@$][\\w$]*)(?<call>\\s*\\()?");
  }
  return new RegExp(parts.join("|"), "g");
}

/** Yield `{from, to, kind}` of the parts of code that have a colour. */
function* highlighted(text, language) {
  const grammar = GRAMMARS.get(language.toLowerCase());
  if (!grammar) return;
  grammar.pattern ??= patternOf(grammar);
  for (const { index, 0: whole, groups } of text.matchAll(grammar.pattern)) {
    if (groups.word !== undefined) {
      const known = grammar.words.has(grammar.loose ? groups.word.toLowerCase() : groups.word);
      if (known || groups.call) yield { from: index, to: index + groups.word.length, kind: known ? "key" : "call" };
    } else {
      const kind = ["comment", "string", "number", "key"].find((each) => groups[each] !== undefined);
      yield { from: index, to: index + whole.length, kind };
    }
  }
}
