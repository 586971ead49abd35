// Operators: what one overload does to storages. Read off its schema once, and corrected where the schema is silent.
//
// What a schema does not say comes from Python at the start (`Silence`): src/lowtide/eager_engine/wrong_schemas.py has
// the table. An entry is made when an operator is first seen, and never changes or moves.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "costs.hpp"
#include "setting.hpp"

namespace lowtide::shim {

// What a schema does not say of one overload; names of arguments.
struct Hidden {
  std::vector<std::string> writes, spare;
  std::string only_if;  // the argument that has to be true for that; empty: always
  bool draws = false;
};

struct Silence {
  std::unordered_map<std::string, Hidden> hidden;  // by name with overload, "aten.relu_.default"
  std::unordered_set<std::string> views;
  std::unordered_set<std::string> communicating, trusted;  // by namespace, "aten"
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& handle, const Silence& silence);

  c10::OperatorHandle handle;
  std::string name;
  std::uint64_t hash;          // of the name
  CostKind cost;
  std::size_t arguments, returns;
  std::vector<int> writes;     // positions of arguments whose bytes it writes
  std::vector<int> hidden_writes, spare;  // of them, those unsaid; what a recomputation spares if written
  int only_if = -1;
  bool is_view = false;        // it reads and writes no bytes
  bool is_random = false;
  bool is_composite = false;   // it is made of others, and does nothing itself
  bool is_out = false;         // it may give what it writes other bytes, of another size
  bool is_known = true;        // it can be recomputed from its arguments
  bool makes = false;          // it has results that are none of its arguments
  bool communicates = false;   // it may write any argument, and read and write after it has returned
  bool is_foreign = false;     // another library's, whose schema is checked each time
  Precisions::Which precisions = 0;  // on which its results may depend
};

class Operators {
 public:
  void set_silence(Silence silence) { silence_ = std::move(silence); }
  // The caller holds one lock.
  const Operator& of(const c10::OperatorHandle& handle);

 private:
  Silence silence_;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Operator>> known_;
  const c10::FunctionSchema* last_schema_[64] = {};  // a cache by address
  const Operator* last_[64] = {};
};

}  // namespace lowtide::shim
