//! Numbers with their noun, for logs and details that people read.

use std::fmt::Display;

/// `1 allocation`, or `2 allocations`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let noun = if count == N::from(1) { one } else { many };
    format!("{count} {noun}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn only_one_is_singular() {
        let pods = [0usize, 1, 2].map(|count| counted(count, "pod", "pods"));
        assert_eq!(pods, ["0 pods", "1 pod", "2 pods"]);
    }
}
