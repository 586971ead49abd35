// SpanOrder: spans sorted by a key that lies in them, found in a few steps.
//
// A monotone function cuts the keys into buckets; a bitmap says which buckets hold anything; each bucket is a treap
// (Seidel and Aragon, Randomized Search Trees, 1996) whose links lie in the spans. Evenly spread keys meet treaps of a
// few spans; badly spread ones cost the logarithm of their number. No operation allocates.
//
// `By` says what is sorted by what: Key, key(span), left(span), right(span), BUCKETS, bucket(key, shift).
//
// INVARIANT (is_valid): a bucket's bit is set iff its treap holds something; every span lies in the bucket of its key;
// keys ascend from left to right, priorities do not rise from root to leaf.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

using SpanId = std::int32_t;
constexpr SpanId NO_SPAN = -1;

template <class Span, class By>
class SpanOrder {
 public:
  using Key = typename By::Key;

  // `spans` may grow, and must outlive the order. `shift` is handed to By::bucket.
  SpanOrder(std::vector<Span>& spans, int shift) : spans_(&spans), shift_(shift) { root_.fill(NO_SPAN); }

  void insert(SpanId id) {
    const Key key = By::key(at(id));
    const std::size_t bucket = By::bucket(key, shift_);
    const std::uint32_t priority = at(id).priority;
    SpanId* slot = &root_[bucket];
    while (*slot != NO_SPAN && at(*slot).priority >= priority) slot = down(*slot, key);
    SpanId rest = *slot;
    *slot = id;
    SpanId* below = &By::left(at(id));
    SpanId* above = &By::right(at(id));
    while (rest != NO_SPAN) {  // what hung here goes below or above the new span
      if (By::key(at(rest)) < key) {
        *below = rest;
        below = &By::right(at(rest));
        rest = *below;
      } else {
        *above = rest;
        above = &By::left(at(rest));
        rest = *above;
      }
    }
    *below = *above = NO_SPAN;
    bits_[bucket / 64] |= std::uint64_t{1} << (bucket % 64);
  }

  // The span must be in the order, with the key under which it was inserted.
  void erase(SpanId id) {
    const Key key = By::key(at(id));
    const std::size_t bucket = By::bucket(key, shift_);
    SpanId* slot = &root_[bucket];
    while (*slot != id) slot = down(*slot, key);
    SpanId left = By::left(at(id)), right = By::right(at(id));
    while (left != NO_SPAN && right != NO_SPAN) {
      if (at(left).priority >= at(right).priority) {
        *slot = left;
        slot = &By::right(at(left));
        left = *slot;
      } else {
        *slot = right;
        slot = &By::left(at(right));
        right = *slot;
      }
    }
    *slot = left != NO_SPAN ? left : right;
    if (root_[bucket] == NO_SPAN) bits_[bucket / 64] &= ~(std::uint64_t{1} << (bucket % 64));
  }

  // The first span whose key is not below `key`, or NO_SPAN.
  SpanId at_least(const Key& key) const {
    const std::size_t bucket = By::bucket(key, shift_);
    SpanId found = NO_SPAN;
    for (SpanId id = root_[bucket]; id != NO_SPAN;) {
      const bool low = By::key(at(id)) < key;
      if (!low) found = id;
      id = low ? By::right(at(id)) : By::left(at(id));
    }
    return found != NO_SPAN ? found : leftmost(next_bucket(bucket));
  }

  // The last span whose key is not above `key`, or NO_SPAN.
  SpanId at_most(const Key& key) const {
    const std::size_t bucket = By::bucket(key, shift_);
    SpanId found = NO_SPAN;
    for (SpanId id = root_[bucket]; id != NO_SPAN;) {
      const bool high = key < By::key(at(id));
      if (!high) found = id;
      id = high ? By::left(at(id)) : By::right(at(id));
    }
    return found != NO_SPAN ? found : rightmost(previous_bucket(bucket));
  }

  SpanId last() const { return rightmost(previous_bucket(By::BUCKETS)); }

  // Walks everything; `members` receives the spans in order.
  bool is_valid(std::vector<SpanId>& members) const {
    members.clear();
    for (std::size_t bucket = 0; bucket < By::BUCKETS; ++bucket) {
      const bool bit = (bits_[bucket / 64] >> (bucket % 64)) & 1;
      if (bit != (root_[bucket] != NO_SPAN) || !collect(root_[bucket], bucket, members)) return false;
    }
    for (std::size_t i = 1; i < members.size(); ++i)
      if (!(By::key(at(members[i - 1])) < By::key(at(members[i])))) return false;
    return true;
  }

 private:
  static constexpr std::size_t WORDS = (By::BUCKETS + 63) / 64;
  static constexpr std::size_t NO_BUCKET = ~std::size_t{0};

  Span& at(SpanId id) const { return (*spans_)[static_cast<std::size_t>(id)]; }
  SpanId* down(SpanId id, const Key& key) const {
    return By::key(at(id)) < key ? &By::right(at(id)) : &By::left(at(id));
  }
  SpanId leftmost(std::size_t bucket) const {
    if (bucket == NO_BUCKET) return NO_SPAN;
    SpanId id = root_[bucket];
    while (By::left(at(id)) != NO_SPAN) id = By::left(at(id));
    return id;
  }
  SpanId rightmost(std::size_t bucket) const {
    if (bucket == NO_BUCKET) return NO_SPAN;
    SpanId id = root_[bucket];
    while (By::right(at(id)) != NO_SPAN) id = By::right(at(id));
    return id;
  }
  // The nearest bucket that holds something, after or before `bucket`.
  std::size_t next_bucket(std::size_t bucket) const {
    std::size_t word = bucket / 64;
    std::uint64_t bits = bits_[word] & (~std::uint64_t{1} << (bucket % 64));
    while (bits == 0) {
      if (++word == WORDS) return NO_BUCKET;
      bits = bits_[word];
    }
    return word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits));
  }
  std::size_t previous_bucket(std::size_t bucket) const {
    std::size_t word = bucket / 64;
    std::uint64_t bits = word < WORDS ? bits_[word] & ((std::uint64_t{1} << (bucket % 64)) - 1) : 0;
    while (bits == 0) {
      if (word-- == 0) return NO_BUCKET;
      bits = bits_[word];
    }
    return word * 64 + 63 - static_cast<std::size_t>(__builtin_clzll(bits));
  }
  // Recursive: a treap's depth is logarithmic, and only the check walks it whole.
  bool collect(SpanId id, std::size_t bucket, std::vector<SpanId>& members) const {
    if (id == NO_SPAN) return true;
    const SpanId left = By::left(at(id)), right = By::right(at(id));
    if (By::bucket(By::key(at(id)), shift_) != bucket) return false;
    for (SpanId child : {left, right})
      if (child != NO_SPAN && at(child).priority > at(id).priority) return false;
    if (!collect(left, bucket, members)) return false;
    members.push_back(id);
    return collect(right, bucket, members);
  }

  std::vector<Span>* spans_;
  int shift_;
  std::array<SpanId, By::BUCKETS> root_;
  std::array<std::uint64_t, WORDS> bits_{};
};

}  // namespace lowtide
