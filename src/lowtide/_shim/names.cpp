#include "names.hpp"

#include <deque>
#include <mutex>
#include <unordered_map>

namespace lowtide::shim {

namespace {

struct Book {
  std::mutex mutex;
  std::deque<std::string> texts{""};
  std::unordered_map<std::string, Name> numbers{{"", 0}};
};

// Never destroyed: blocks are released, and messages written, until the very end of the process.
Book& book() {
  static Book* const kept = new Book;
  return *kept;
}

}  // namespace

Name number_of(const std::string& text) {
  Book& b = book();
  const std::lock_guard<std::mutex> hold(b.mutex);
  const auto [found, is_new] = b.numbers.try_emplace(text, static_cast<Name>(b.texts.size()));
  if (is_new) b.texts.push_back(text);
  return found->second;
}

std::string text_of(Name name) {
  Book& b = book();
  const std::lock_guard<std::mutex> hold(b.mutex);
  return name < b.texts.size() ? b.texts[name] : "";
}

void lock_names() { book().mutex.lock(); }
void unlock_names() { book().mutex.unlock(); }

}  // namespace lowtide::shim
