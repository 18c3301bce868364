// CRC-32 as zip files and gzip have it (ISO 3309, polynomial 0x04C11DB7 reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mythos {

/// The checksum of everything so far followed by `bytes`; `so_far` is 0 at the beginning.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t so_far = 0);

}  // namespace mythos
