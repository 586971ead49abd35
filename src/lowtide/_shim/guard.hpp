// Guard: the mark on a storage that makes every access through torch raise a message, and its removal.
//
// Releases from 2.13 on remove the mark themselves (LOWTIDE_TORCH_LIFTS_GUARD, set by the build where the header has
// it). Earlier ones only set it; there the flag is reached by its name, which an explicit instantiation may do.
#pragma once
#include <c10/core/StorageImpl.h>

#include <string>

namespace lowtide::shim {

inline void set_guard(c10::StorageImpl& storage, const std::string& message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

#if LOWTIDE_TORCH_LIFTS_GUARD

inline void lift_guard(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }

#else

using GuardFlag = bool c10::StorageImpl::*;

GuardFlag guard_flag();
template <GuardFlag flag>
struct GuardReach {
  friend GuardFlag guard_flag() { return flag; }
};
template struct GuardReach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// The pointer that is set next makes the storage look at its flags again.
inline void lift_guard(c10::StorageImpl& storage) {
  storage.*guard_flag() = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_ = std::nullopt;
}

#endif

}  // namespace lowtide::shim
