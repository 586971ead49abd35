#include "tape.hpp"

#include <stdexcept>

namespace lowtide::eager {

namespace {

void require(bool condition) {
  if (!condition) throw std::invalid_argument("a tape's events do not follow from those before them");
}

// Reads words one after the other.
class Words {
 public:
  explicit Words(const std::vector<std::int64_t>& words) : words_(words) {}
  bool at_end() const { return next_ == words_.size(); }
  std::int64_t word() {
    require(next_ < words_.size());
    return words_[next_++];
  }
  std::int64_t least(std::int64_t bound) {
    const std::int64_t word = this->word();
    require(word >= bound);
    return word;
  }
  std::int64_t below(std::int64_t bound) {
    const std::int64_t word = least(0);
    require(word < bound);
    return word;
  }
  // `count` words as they are.
  Slice<std::int64_t> words(std::int64_t count) {
    require(count <= static_cast<std::int64_t>(words_.size() - next_));
    const Slice<std::int64_t> slice(words_.data() + next_, static_cast<std::size_t>(count));
    next_ += static_cast<std::size_t>(count);
    return slice;
  }

 private:
  const std::vector<std::int64_t>& words_;
  std::size_t next_ = 0;
};

}  // namespace

// What is known of contents so far.
struct Tape::Contents {
  std::vector<char> dead{1};  // by number; of a root
  std::vector<Number> roots{0};

  Number known(Number number) const {
    require(number >= 1 && number < static_cast<Number>(roots.size()));
    return number;
  }
  Number root(Number number) const { return roots[static_cast<std::size_t>(known(number))]; }
  void require_alive(Number number) const { require(dead[static_cast<std::size_t>(root(number))] == 0); }
  void add(Number root) {
    dead.push_back(0);
    roots.push_back(root == 0 ? static_cast<Number>(roots.size()) : root);
  }
  // It has to be a root.
  void end(Number number) {
    require_alive(number);
    require(root(number) == number);
    dead[static_cast<std::size_t>(number)] = 1;
  }
};

Tape::Tape(std::vector<std::int64_t> words, std::vector<Number> kept) : words_(std::move(words)), kept_(std::move(kept)) {
  // Slices point into these lists, which must not grow any more.
  views_.reserve(words_.size() / 2);
  consumed_.reserve(words_.size() / 2);
  Contents contents;
  Words reader(words_);
  while (!reader.at_end()) {
    Event event{};
    event.kind = static_cast<Kind>(reader.below(5));
    if (event.kind == LEAF) {
      event.number_or_size = reader.least(0);
      contents.add(0);
    } else if (event.kind == DIED) {
      event.number_or_size = reader.word();
      contents.end(event.number_or_size);
    } else if (event.kind == SETTLED) {
      event.number_or_size = reader.word();
      contents.require_alive(event.number_or_size);
    } else if (event.kind == USED) {
      event.name = static_cast<std::uint64_t>(reader.word());
      time_ns_ += event.cost_ns = reader.least(0);
      event.inputs = reader.words(reader.least(0));
      for (Number number : event.inputs) contents.require_alive(number);
    } else {
      read_call(reader, event, contents);
    }
    events_.push_back(event);
  }
  for (Number number : kept_) contents.require_alive(number);
  contents_ = static_cast<Number>(contents.roots.size()) - 1;
}

template <class Words>
void Tape::read_call(Words& reader, Event& event, Contents& contents) {
  event.name = static_cast<std::uint64_t>(reader.word());
  event.cost_ns = reader.least(0);
  time_ns_ += event.cost_ns;
  const std::int64_t inputs = reader.least(0), outputs = reader.least(0), views = reader.least(0);
  const std::int64_t consumed = reader.least(0), temps = reader.least(0);
  event.inputs = reader.words(inputs);
  for (Number number : event.inputs) contents.require_alive(number);
  event.sizes_B = reader.words(outputs);
  for (Bytes size_B : event.sizes_B) require(size_B >= 0);
  std::vector<Number> roots(event.sizes_B.size(), 0);
  constexpr Number WRITTEN_OVER = -1;
  const std::size_t first_view = views_.size(), first_consumed = consumed_.size();
  for (std::int64_t i = 0; i < views; ++i) {
    const auto output = static_cast<std::size_t>(reader.below(outputs));
    const Number of = reader.word();
    contents.require_alive(of);
    require(roots[output] == 0 && event.sizes_B[output] == 0);
    roots[output] = contents.root(of);
    views_.push_back({static_cast<Index>(output), of});
  }
  for (std::int64_t i = 0; i < consumed; ++i) {
    const auto input = static_cast<std::size_t>(reader.below(inputs));
    const auto output = static_cast<std::size_t>(reader.below(outputs));
    require(roots[output] == 0);
    roots[output] = WRITTEN_OVER;
    contents.end(event.inputs[input]);
    consumed_.push_back({static_cast<Index>(input), static_cast<Index>(output)});
  }
  event.views = {views_.data() + first_view, views_.size() - first_view};
  event.consumed = {consumed_.data() + first_consumed, consumed_.size() - first_consumed};
  event.temps_B = reader.words(temps);
  for (Bytes size_B : event.temps_B) require(size_B >= 0);
  for (Number root : roots) contents.add(root == WRITTEN_OVER ? 0 : root);
}

}  // namespace lowtide::eager
