// Names: texts that stand in a block's 64-bit tag as small numbers.
//
// A tag says who asked for a block: 32 bits for the name of the statement that ran (0: none), 31 bits for the name of
// the phase between statements, 1 bit for "by a worker thread". Names are never forgotten, so a tag can be read back
// as long as the process lives; the same text always has the same number. Number 0 is the empty text.
// Thread-safe; number_of() takes a lock and is for rare calls, never for an allocation.
#pragma once
#include <cstdint>
#include <string>

namespace lowtide::shim {

using Name = std::uint32_t;

Name number_of(const std::string& text);
std::string text_of(Name name);

struct Asker {
  Name statement = 0;
  Name phase = 0;
  bool worker = false;
};

constexpr std::uint64_t WORKER_BIT = std::uint64_t{1} << 63;

inline std::uint64_t tag_of(const Asker& asker) {
  return (asker.worker ? WORKER_BIT : 0) | (std::uint64_t{asker.phase} << 32) | asker.statement;
}

inline Asker asker_of(std::uint64_t tag) {
  return {static_cast<Name>(tag & 0xffffffffU), static_cast<Name>((tag & ~WORKER_BIT) >> 32), (tag & WORKER_BIT) != 0};
}

void lock_names();    // around a fork
void unlock_names();

}  // namespace lowtide::shim
