// Setting: what decides over an operator's result and is no argument, so that running it again does the same: the type
// that floats have where none is named, how many threads share the work, whether oneDNN may be used.
//
// The program may change them between an operator's first run and its second. They are the process's, not the thread's;
// `At` changes nothing where they are as they were.
#pragma once
#include <c10/util/typeid.h>

namespace lowtide::shim {

struct Setting {
  caffe2::TypeMeta floats;
  int threads = 0;
  bool mkldnn = true, gradients = false;  // grad mode was on: some operators then save more

  static Setting present();
  bool operator==(const Setting& other) const {
    return floats == other.floats && threads == other.threads && mkldnn == other.mkldnn && gradients == other.gradients;
  }

  class At;

 private:
  void enforce(const Setting& instead_of) const;
};

class Setting::At {
 public:
  explicit At(const Setting& setting);
  At(const At&) = delete;
  At& operator=(const At&) = delete;
  ~At();

 private:
  const Setting before_, there_;
};

}  // namespace lowtide::shim
