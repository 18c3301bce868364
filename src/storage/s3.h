// Objects of S3, Amazon's or any server that speaks its protocol.
#pragma once

#include "storage/byte_source.h"

#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace arrow::fs {
class S3FileSystem;
}

namespace mythos {

/// Whether `source` begins with "s3://".
bool is_s3_address(std::string_view source);

/// The objects of "s3://BUCKET/PREFIX": one object, all objects below a folder with one of the `extensions`, or those
/// that match a pattern of `*`, `?` and `[..]`, none of which crosses a '/' (a folder that matches counts with its
/// objects). Names and folders that begin with a dot are left out. Sorted by the bytes of the key; `name` is the key
/// below the folder or below the part of the pattern without wildcards; `version` is the time of the last change, all
/// that a listing has. Throws a usage error for what cannot be a source (no such bucket, no such object, none that
/// matches), Error where the server cannot be reached or says no, Stopped.
std::vector<SourceFile> list_s3_files(const std::string& source, std::span<const std::string_view> extensions,
                                      std::stop_token stop = {});

/// Opens a listed object (its `location`, `size` and `version` count; an empty version is not compared). Throws Error
/// if it is gone or is not the listed one any more. Of what is read the ETag is compared again every few seconds of
/// reading, so that an object replaced in the middle is an Error and not a mixture. Reads are thread-safe, try again
/// what may pass (about a minute in all) and end at once on a stop.
std::shared_ptr<const ByteSource> open_s3_file(const SourceFile& file, std::stop_token stop = {});

/// The file system that serves a bucket, with endpoint, region and credentials as AWS's own tools find them (see
/// S3Settings); without any credentials requests are not signed, which public buckets allow. Made once for each
/// environment and shared. Paths are "BUCKET/KEY". Must not outlive main().
std::shared_ptr<arrow::fs::S3FileSystem> s3_file_system(const std::string& bucket);

/// The same for writing: requests that may pass are tried again for about `patience` seconds, on a lost connection too
/// and after a stop was asked for. `parallel`: parts of an upload are sent at the same time, by threads of Arrow's.
std::shared_ptr<arrow::fs::S3FileSystem> s3_write_system(const std::string& bucket, double patience, bool parallel);

}  // namespace mythos
