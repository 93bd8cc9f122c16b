//! Formats numbers and strings according to Python's format specifications.

use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use super::values::{integer as to_integer, invalid, number as to_number, to_text, type_name};
use crate::python_json::float_repr;

/// Larger widths and precisions are refused: no prompt needs them.
const MAX_COUNT: usize = 100_000;

#[derive(Clone)]
pub struct Spec {
    pub fill: char,
    /// One of `<>^=`; None is the default of the type.
    pub align: Option<char>,
    pub default_align: char,
    /// The sign of numbers that are not negative: `+`, a space, or `-` for none.
    pub sign: char,
    pub alternate: bool,
    pub zeros: bool,
    pub width: usize,
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    /// From the `%` operator, where the precision of an integer is its minimal number of digits.
    pub is_percent_style: bool,
}

impl Spec {
    fn new(default_align: char) -> Self {
        Self {
            fill: ' ',
            align: None,
            default_align,
            sign: '-',
            alternate: false,
            zeros: false,
            width: 0,
            grouping: None,
            precision: None,
            is_percent_style: false,
        }
    }

    /// As `%` aligns everything.
    pub fn right_aligned() -> Self {
        Self {
            is_percent_style: true,
            ..Self::new('>')
        }
    }

    /// The precision is the maximal number of characters.
    pub fn cut(&self, text: &str) -> String {
        match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text.to_string(),
        }
    }
}

pub fn checked(count: u64) -> Result<usize, Error> {
    usize::try_from(count)
        .ok()
        .filter(|count| *count <= MAX_COUNT)
        .ok_or_else(|| invalid(format!("a width or precision is above {MAX_COUNT}")))
}

pub fn pad(text: &str, spec: &Spec) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    let left = match spec.align.unwrap_or(spec.default_align) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let fill = |count: usize| spec.fill.to_string().repeat(count);
    fill(left) + text + &fill(missing - left)
}

/// Pads a number to the width, with zeros between sign and digits.
fn pad_number(negative: bool, prefix: &str, digits: &str, spec: &Spec) -> String {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, '+') => "+",
        (false, ' ') => " ",
        _ => "",
    };
    let head = sign.to_string() + prefix;
    let zeros = spec.zeros && spec.align.is_none();
    if !zeros && spec.align != Some('=') {
        return pad(&(head + digits), spec);
    }
    let fill = if zeros { '0' } else { spec.fill };
    let room = spec.width.saturating_sub(head.chars().count());
    let missing = room.saturating_sub(digits.chars().count());
    if let (Some(separator), '0') = (spec.grouping, fill) {
        return head + &grouped_to_width(digits, separator, room);
    }
    head + &fill.to_string().repeat(missing) + digits
}

/// Leading zeros are grouped like other digits.
fn grouped_to_width(digits: &str, separator: char, width: usize) -> String {
    let end = digits.find(['.', 'e', 'E', '%']).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut whole: String = whole.chars().filter(|c| *c != separator).collect();
    loop {
        let grouped = group(&whole, separator) + rest;
        if grouped.chars().count() >= width {
            return grouped;
        }
        whole.insert(0, '0');
    }
}

fn group(digits: &str, separator: char) -> String {
    let mut out = String::new();
    for (index, c) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

pub fn integer(value: i128, kind: char, spec: &Spec) -> String {
    let magnitude = value.unsigned_abs();
    let mut digits = match kind {
        'x' => format!("{magnitude:x}"),
        'X' => format!("{magnitude:X}"),
        'o' => format!("{magnitude:o}"),
        'b' => format!("{magnitude:b}"),
        _ => magnitude.to_string(),
    };
    if let Some(precision) = spec.precision {
        digits = format!("{digits:0>precision$}");
    }
    let prefix = match (spec.alternate, kind) {
        (true, 'x') => "0x",
        (true, 'X') => "0X",
        (true, 'o') => "0o",
        (true, 'b') => "0b",
        _ => "",
    };
    if let Some(separator) = spec.grouping {
        digits = group(&digits, separator);
    }
    pad_number(value < 0, prefix, &digits, spec)
}

pub fn float(value: f64, kind: char, spec: &Spec) -> String {
    let magnitude = value.abs();
    let mut digits = if !magnitude.is_finite() {
        float_repr(magnitude)
    } else {
        let precision = spec.precision.unwrap_or(6);
        match kind.to_ascii_lowercase() {
            'f' => fixed(magnitude, precision, spec.alternate),
            'e' => scientific(magnitude, precision, spec.alternate),
            '%' => fixed(magnitude * 100.0, precision, spec.alternate) + "%",
            'g' => general(magnitude, precision, spec.alternate, false),
            // No type: like repr, or with a precision like g, with at least one decimal.
            _ => match spec.precision {
                None => float_repr(magnitude),
                Some(precision) => general(magnitude, precision, spec.alternate, true),
            },
        }
    };
    if kind.is_ascii_uppercase() {
        digits = digits.to_uppercase();
    }
    if let Some(separator) = spec.grouping {
        digits = grouped_to_width(&digits, separator, 0);
    }
    let negative = value.is_sign_negative() && !value.is_nan();
    let mut spec = spec.clone();
    // C's printf, and so Python's %, pads infinities and NaN with spaces; format does not.
    spec.zeros &= value.is_finite() || !spec.is_percent_style;
    pad_number(negative, "", &digits, &spec)
}

fn fixed(value: f64, precision: usize, alternate: bool) -> String {
    let point = if alternate && precision == 0 { "." } else { "" };
    format!("{value:.precision$}{point}")
}

/// Rust writes 1.5e4 where C writes 1.5e+04.
fn scientific(value: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if alternate && precision == 0 { "." } else { "" };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{point}e{sign}{:02}", exponent.abs())
}

fn general(value: f64, precision: usize, alternate: bool, keep_digit: bool) -> String {
    let precision = precision.max(1);
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i64 = rounded
        .split_once('e')
        .and_then(|parts| parts.1.parse().ok())
        .unwrap_or(0);
    // With one decimal to keep, there is room for one digit less before the point.
    let highest = precision as i64 - i64::from(keep_digit);
    if exponent < -4 || exponent >= highest {
        let text = scientific(value, precision - 1, alternate);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", without_zeros(mantissa, alternate));
    }
    let decimals = (precision as i64 - 1 - exponent).max(0) as usize;
    let text = without_zeros(&fixed(value, decimals, alternate), alternate);
    if keep_digit && !text.contains('.') {
        return text + ".0";
    }
    text
}

fn without_zeros(digits: &str, keep: bool) -> String {
    if keep || !digits.contains('.') {
        return digits.to_string();
    }
    digits
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_string()
}

/// `format(value, spec)`.
pub fn formatted(value: &Value, text: &str) -> Result<String, Error> {
    if text.is_empty() {
        return to_text(value);
    }
    let is_number = to_number(value).is_some();
    let (mut spec, kind) = parse(text, if is_number { '>' } else { '<' })?;
    let wrong = |kind: char| {
        let given = type_name(value);
        invalid(format!("format: {kind} cannot be used for {given}"))
    };
    if value.kind() == ValueKind::String {
        if !matches!(kind, None | Some('s')) || spec.align == Some('=') {
            return Err(wrong(kind.unwrap_or('=')));
        }
        if spec.zeros {
            spec.fill = '0';
        }
        return Ok(pad(&spec.cut(&to_text(value)?), &spec));
    }
    if !is_number {
        return Err(invalid(format!(
            "format: a specification cannot be used for {}",
            type_name(value)
        )));
    }
    match (to_integer(value), kind) {
        (Some(value), Some('c')) => {
            let c = u32::try_from(value).ok().and_then(char::from_u32);
            let c = c.ok_or_else(|| invalid("format: no such character"))?;
            spec.default_align = '<';
            Ok(pad(&c.to_string(), &spec))
        }
        (Some(_), None | Some('b' | 'd' | 'n' | 'o' | 'x' | 'X')) if spec.precision.is_some() => {
            Err(invalid("format: integers have no precision"))
        }
        (Some(value), None | Some('d' | 'n')) => Ok(integer(value, 'd', &spec)),
        (Some(value), Some(kind @ ('b' | 'o' | 'x' | 'X'))) => Ok(integer(value, kind, &spec)),
        (_, kind @ (None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%'))) => {
            let kind = kind.map_or(' ', |kind| if kind == 'n' { 'g' } else { kind });
            Ok(float(to_number(value).unwrap_or_default(), kind, &spec))
        }
        (_, Some(kind)) => Err(wrong(kind)),
    }
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
fn parse(text: &str, default_align: char) -> Result<(Spec, Option<char>), Error> {
    let bad = || invalid(format!("format: {text} is not a specification"));
    let is_align = |c: &char| "<>^=".contains(*c);
    let mut spec = Spec::new(default_align);
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    if chars.get(1).is_some_and(is_align) {
        (spec.fill, spec.align) = (chars[0], Some(chars[1]));
        at = 2;
    } else if chars.first().is_some_and(is_align) {
        spec.align = Some(chars[0]);
        at = 1;
    }
    let mut take = |wanted: &str| {
        let c = chars.get(at).copied().filter(|c| wanted.contains(*c));
        at += usize::from(c.is_some());
        c
    };
    spec.sign = take("+- ").unwrap_or('-');
    take("z");
    spec.alternate = take("#").is_some();
    spec.zeros = take("0").is_some();
    let mut digits = String::new();
    while let Some(digit) = take("0123456789") {
        digits.push(digit);
    }
    spec.width = checked(
        digits
            .parse()
            .unwrap_or(if digits.is_empty() { 0 } else { u64::MAX }),
    )?;
    spec.grouping = take(",_");
    if take(".").is_some() {
        digits.clear();
        while let Some(digit) = take("0123456789") {
            digits.push(digit);
        }
        if digits.is_empty() {
            return Err(bad());
        }
        spec.precision = Some(checked(digits.parse().unwrap_or(u64::MAX))?);
    }
    match &chars[at..] {
        [] => Ok((spec, None)),
        [kind] => Ok((spec, Some(*kind))),
        _ => Err(bad()),
    }
}
