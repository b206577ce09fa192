//! Which content codings hide the events of a body.
//!
//! In: the values of `content-encoding`. Out: whether the body is compressed or encrypted. A word that means neither
//! (`utf-8`, `none`, nothing at all: servers write such things) counts as identity, for the body is readable.

/// IANA's registry of content codings (RFC 9110 §16.6.1), but for `identity`; and below them others that are met.
const CODINGS: [&str; 19] = [
    "aes128gcm",
    "br",
    "compress",
    "dcb",
    "dcz",
    "deflate",
    "exi",
    "gzip",
    "pack200-gzip",
    "x-compress",
    "x-gzip",
    "zstd",
    "brotli",
    "bzip2",
    "lz4",
    "lzma",
    "snappy",
    "xz",
    "zlib",
];

/// `values`: of every `content-encoding` field, each a list.
pub fn is_coded<'a>(values: impl IntoIterator<Item = &'a str>) -> bool {
    let mut codings = values.into_iter().flat_map(|value| value.split(','));
    codings.any(|coding| CODINGS.iter().any(|known| coding.trim().eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hides_the_bytes_counts() {
        for plain in
            ["", "identity", "Identity, identity", "utf-8", "none", "chunked", "text/plain", ",", "gzipped"]
        {
            assert!(!is_coded([plain]), "{plain}");
        }
        for coded in ["gzip", " GZIP ", "identity, br", "br,identity", "x-gzip", "zstd", "deflate"] {
            assert!(is_coded([coded]), "{coded}");
        }
        assert!(is_coded(["identity", "gzip"]), "every field counts");
        assert!(!is_coded([]));
    }
}
