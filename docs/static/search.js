/* Sphinx's search finds only pages that contain every word of a query, so it finds nothing for most titles of
issues. This ranks pages by the words that they contain: rare words count more than common ones, and words of
a heading more than words of the text. A result is a section: a page has one for each of its headings that fit
best, at most two. Other search engines, such as Pagefind, fetch their index, so they need a web server. */

"use strict";

if (typeof Search !== "undefined") {
  const HEADING = 2; // the weight of a word in a heading; in the text it is 1
  const SECTIONS = 2; // the most results of a page

  Search.performTermsSearch = (words) => {
    const { alltitles, docnames, filenames, terms, titles } = Search._index;
    const stemmer = new Stemmer();
    const ignored = new Set(stopwords); // "the", "with"; Sphinx has removed them from the query and the index
    const stems = (text) =>
      splitQuery(text.toLowerCase())
        .filter((word) => !ignored.has(word))
        .map((word) => stemmer.stemWord(word));
    const headings = Object.entries(alltitles).map(([text, places]) => ({
      text,
      places,
      stems: stems(`${text} ${text.replaceAll("_", " ")}`), // an identifier and its words
    }));
    const known = new Set([...Object.keys(terms), ...headings.flatMap((heading) => heading.stems)]);

    // What a word stands for: itself; or else the known words that contain it; or else those that it begins
    // with, as "pickleable" does with "pickl", the stem of "pickle".
    const meanings = (word) => {
      if (known.has(word)) return new Set([word]);
      const containing = [...known].filter((term) => term.includes(word));
      if (containing.length) return new Set(containing);
      return new Set([...known].filter((term) => term.length > 4 && word.startsWith(term)));
    };
    // The words of an identifier, such as resume_from_checkpoint, count too.
    const parts = (word) =>
      word.includes("_") ? [...stems(word.replaceAll("_", " ")), ...(known.has(word) ? [word] : [])] : [word];

    const scores = new Array(docnames.length).fill(0);
    let total = 0;
    for (const word of new Set([...words].flatMap(parts).filter((word) => word.length > 1))) {
      const meant = meanings(word);
      const pages = new Set([...meant].flatMap((term) => (Object.hasOwn(terms, term) ? terms[term] : [])));
      const fitting = headings.filter((heading) => heading.stems.some((stem) => meant.has(stem)));
      fitting.forEach(({ places }) => places.forEach(([page]) => pages.add(page)));
      const weight = Math.log(1 + docnames.length / (pages.size || 1));
      total += weight;
      pages.forEach((page) => (scores[page] += weight));
      fitting.forEach((heading) => (heading.score = (heading.score ?? 0) + weight));
    }

    const sections = docnames.map(() => []);
    for (const { score = 0, text, places } of headings)
      for (const [page, id] of places) if (score) sections[page].push({ score, text, id });
    sections.forEach((fitting) => fitting.sort((one, other) => other.score - one.score).splice(SECTIONS));
    const results = docnames.flatMap((name, page) =>
      (sections[page].length ? sections[page] : [{ score: 0 }]).map(({ score, text, id }) => ({
        name, page, text, id, score: scores[page] && scores[page] + HEADING * score,
      })),
    );
    const least = Math.max(...results.map(({ score }) => score)) / 3;
    return results.flatMap(({ name, page, text, id, score }) => {
      if (!score || score < least) return [];
      const title = id ? `${titles[page]} > ${text}` : titles[page];
      const scaled = (Scorer.title * score) / total / (1 + HEADING);
      const kind = id ? SearchResultKind.title : SearchResultKind.text;
      return [[name, title, id ? `#${id}` : "", null, scaled, filenames[page], kind]];
    });
  };
}
