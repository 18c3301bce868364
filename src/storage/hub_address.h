// Hugging Face's conventions: addresses, environment variables, places.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mythos {

/// hf://datasets/OWNER/NAME[@REVISION][/PATH] or, for models, hf://OWNER/NAME[@REVISION][/PATH].
struct HubAddress {
  bool dataset = false;
  std::string owner;
  std::string name;
  std::string revision = "main";
  std::string path;  ///< without a slash at either end

  /// "OWNER/NAME"
  [[nodiscard]] std::string repository() const { return owner + "/" + name; }
  /// "hf://datasets/OWNER/NAME": for messages.
  [[nodiscard]] std::string shown() const;
  /// "hf://datasets/OWNER/NAME@REVISION": the key of commits.
  [[nodiscard]] std::string key() const;
  /// The address of a file at a commit, which parse_hub_address understands.
  [[nodiscard]] std::string file_at(const std::string& commit, const std::string& file) const;
};

/// Throws a usage error for what is no such address.
HubAddress parse_hub_address(const std::string& address);
/// Whether a revision is a commit: 40 hexadecimal digits.
bool is_commit(std::string_view revision);

/// What the environment says, as Python's huggingface_hub understands it.
struct HubSettings {
  std::string endpoint;         ///< HF_ENDPOINT, without a slash at the end
  std::string token;            ///< HF_TOKEN, HUGGING_FACE_HUB_TOKEN, or the file of HF_TOKEN_PATH or HF_HOME/token
  std::filesystem::path cache;  ///< HF_HUB_CACHE, or HF_HOME/hub
  bool offline = false;         ///< HF_HUB_OFFLINE
};
HubSettings hub_settings();

}  // namespace mythos
