/* The tokenizer of the model: byte-level BPE, as the `tokenizers` library runs it.

   A text is cut into words; the bytes of a word are written as one visible character each; then the pair of neighbours
   that stands first in the list of merges becomes one, until no pair of the list is left. */
(() => {
  "use strict";

  // What GPT-2 calls a word. Rust's \s is Unicode's White_Space, which JavaScript's \s is not quite.
  const SPACE = "\\p{White_Space}", NOT_SPACE = "\\P{White_Space}";
  const WORDS = new RegExp(
    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!${NOT_SPACE})|${SPACE}+`, "gu");

  // Bytes that are visible in Latin-1 stand for themselves; the others, in order, for the characters from U+0100.
  const alphabet = [];
  for (let byte = 0, next = 256; byte < 256; byte++) {
    const visible = (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173);
    alphabet.push(String.fromCharCode(visible ? byte : next++));
  }
  const byteOf = new Map(alphabet.map((character, byte) => [character, byte]));

  // `vocabulary`: token texts in that alphabet, in order of their ids; `merges`: "left right", first merge first;
  // `special`: tokens that are taken as they are.
  function tokenizer({vocabulary, merges, special}) {
    const ids = new Map(vocabulary.map((text, id) => [text, id]));
    const ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    const encoder = new TextEncoder(), decoder = new TextDecoder();
    const known = new Map();

    function merged(word) {
      if (known.has(word)) return known.get(word);
      let parts = Array.from(encoder.encode(word), byte => alphabet[byte]);
      for (;;) {
        let best = Infinity, pair = "";
        for (let at = 0; at + 1 < parts.length; at++) {
          const here = `${parts[at]} ${parts[at + 1]}`, rank = ranks.get(here) ?? Infinity;
          if (rank < best) [best, pair] = [rank, here];
        }
        if (best === Infinity) break;
        const next = [];
        for (let at = 0; at < parts.length; at++) {
          const both = at + 1 < parts.length && `${parts[at]} ${parts[at + 1]}` === pair;
          next.push(both ? parts[at] + parts[++at] : parts[at]);
        }
        parts = next;
      }
      const found = parts.map(part => ids.get(part));
      known.set(word, found);
      return found;
    }

    function encode(text) {
      for (const name of special) {
        const at = text.indexOf(name);
        if (at >= 0) return [...encode(text.slice(0, at)), ids.get(name), ...encode(text.slice(at + name.length))];
      }
      return (text.match(WORDS) ?? []).flatMap(merged);
    }

    // A token may end within a character; what is not whole is shown as U+FFFD.
    const decode = id => special.includes(vocabulary[id])
      ? vocabulary[id]
      : decoder.decode(Uint8Array.from(vocabulary[id], character => byteOf.get(character)));

    return {encode, decode};
  }

  Object.assign((window.ownPrompt ??= {}), {tokenizer});
})();
