//! Python's character classes where Rust's standard library differs.
//!
//! General categories come from the `regex` crate's tables; the lists hold what Python takes from
//! Unicode's numeric types and from its mappings to title case.

use std::sync::LazyLock;

use regex::Regex;

macro_rules! character_class {
    ($name:ident, $pattern:literal) => {
        pub fn $name(c: char) -> bool {
            static CLASS: LazyLock<Regex> =
                LazyLock::new(|| Regex::new($pattern).expect("constant pattern"));
            CLASS.is_match(c.encode_utf8(&mut [0; 4]))
        }
    };
}

character_class!(is_alpha, r"\p{L}");
character_class!(is_decimal, r"\p{Nd}");
character_class!(is_number, r"\p{N}");
character_class!(is_title, r"\p{Lt}");
character_class!(is_printable_or_space, r"[^\p{C}\p{Z}]| ");
character_class!(is_identifier_start, r"[\p{XID_Start}_]");
character_class!(is_identifier_continue, r"\p{XID_Continue}");

/// Ranges (first, last) of characters that have the value of a digit but are not decimal digits.
const DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// Ideographs with a numeric value.
const NUMERALS: [u32; 81] = [
    0x3405, 0x3483, 0x382a, 0x3b4d, 0x4e00, 0x4e03, 0x4e07, 0x4e09, 0x4e5d, 0x4e8c, 0x4e94, 0x4e96,
    0x4ebf, 0x4ec0, 0x4edf, 0x4ee8, 0x4f0d, 0x4f70, 0x5104, 0x5146, 0x5169, 0x516b, 0x516d, 0x5341,
    0x5343, 0x5344, 0x5345, 0x534c, 0x53c1, 0x53c2, 0x53c3, 0x53c4, 0x56db, 0x58f1, 0x58f9, 0x5e7a,
    0x5efe, 0x5eff, 0x5f0c, 0x5f0d, 0x5f0e, 0x5f10, 0x62fe, 0x634c, 0x67d2, 0x6f06, 0x7396, 0x767e,
    0x8086, 0x842c, 0x8cae, 0x8cb3, 0x8d30, 0x9621, 0x9646, 0x964c, 0x9678, 0x96f6, 0xf96b, 0xf973,
    0xf978, 0xf9b2, 0xf9d1, 0xf9d3, 0xf9fd, 0x20001, 0x20064, 0x200e2, 0x20121, 0x2092a, 0x20983,
    0x2098c, 0x2099c, 0x20aea, 0x20afd, 0x20b19, 0x22390, 0x22998, 0x23b1b, 0x2626d, 0x2f890,
];

pub fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~') || (!c.is_ascii() && is_printable_or_space(c))
}

pub fn is_digit(c: char) -> bool {
    let code = u32::from(c);
    let among = |range: &(u32, u32)| (range.0..=range.1).contains(&code);
    c.is_ascii_digit() || (!c.is_ascii() && (is_decimal(c) || DIGITS.iter().any(among)))
}

pub fn is_numeric(c: char) -> bool {
    is_number(c) || NUMERALS.binary_search(&u32::from(c)).is_ok()
}

pub fn is_alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric() || (!c.is_ascii() && (is_alpha(c) || is_digit(c) || is_numeric(c)))
}

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// The characters at which `str.splitlines` ends a line.
pub fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

pub fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// The title case of one character, which is its upper case for nearly all of them.
pub fn title(c: char) -> String {
    match u32::from(c) {
        0x1c4..=0x1c6 => "\u{1c5}".to_string(),
        0x1c7..=0x1c9 => "\u{1c8}".to_string(),
        0x1ca..=0x1cc => "\u{1cb}".to_string(),
        0x1f1..=0x1f3 => "\u{1f2}".to_string(),
        0x10d0..=0x10fa | 0x10fd..=0x10ff => c.to_string(),
        code @ (0x1f80..=0x1faf) => char::from_u32(code | 8).unwrap_or(c).to_string(),
        code @ (0x1fb3 | 0x1fc3 | 0x1ff3) => char::from_u32(code + 9).unwrap_or(c).to_string(),
        0x1fbc | 0x1fcc | 0x1ffc => c.to_string(),
        code @ (0x1fb2 | 0x1fb4 | 0x1fb7 | 0x1fc2 | 0x1fc4 | 0x1fc7 | 0x1ff2 | 0x1ff4 | 0x1ff7) => {
            greek_title(code)
        }
        _ => {
            // "ss" and the ligatures: only the first letter is upper case.
            let mut upper = c.to_uppercase();
            let first = upper.next().unwrap_or(c);
            let rest: Vec<char> = upper.collect();
            let is_ligature = matches!(u32::from(c), 0xdf | 0x587 | 0xfb00..=0xfb17);
            let lower = |c: &char| c.to_lowercase().next().unwrap_or(*c);
            let rest = rest.iter().map(|c| if is_ligature { lower(c) } else { *c });
            std::iter::once(first).chain(rest).collect()
        }
    }
}

/// Greek vowels with a subscript iota that no single title-case character has.
fn greek_title(code: u32) -> String {
    match code {
        0x1fb2 => "\u{1fba}\u{345}",
        0x1fb4 => "\u{386}\u{345}",
        0x1fb7 => "\u{1fbc}\u{342}",
        0x1fc2 => "\u{1fca}\u{345}",
        0x1fc4 => "\u{389}\u{345}",
        0x1fc7 => "\u{1fcc}\u{342}",
        0x1ff2 => "\u{1ffa}\u{345}",
        0x1ff4 => "\u{38f}\u{345}",
        _ => "\u{1ffc}\u{342}",
    }
    .to_string()
}

/// `str.casefold`: for what folds otherwise than to lower case, upper case and back is the same,
/// except for Cherokee, which folds to upper case, and the capital sharp s.
pub fn fold_case(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match u32::from(c) {
            0x1e9e => out.push_str("ss"),
            0x13a0..=0x13f5 => out.push(c),
            0x13f8..=0x13fd | 0xab70..=0xabbf => out.extend(c.to_uppercase()),
            0x130 => out.extend(c.to_lowercase()),
            _ if folds_like_upper(c) => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
            _ => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// Whether the lower case of the upper case is the fold: not so for the dotless i.
fn folds_like_upper(c: char) -> bool {
    let is_greek_title = || c >= '\u{1f88}' && is_title(c);
    (c.is_lowercase() && c != '\u{131}') || c == '\u{345}' || is_greek_title()
}
