// The search page: what the address asks for is searched at once.
const search = new PagefindUI({
  element: "#search",
  showImages: false,
  showSubResults: true,
  debounceTimeoutMs: 100,
  pageSize: 10,
  ranking: { termSimilarity: 5.0, metaWeights: { title: 2.0, words: 10.0 } },
  processResult: (result) => {
    delete result.meta.words;
    return result;
  },
});
const asked = new URLSearchParams(location.search).get("q");
if (asked) search.triggerSearch(asked);
