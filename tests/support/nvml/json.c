#include "json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static Json *parse_value(const char **at, int depth);

static void skip(const char **at) {
    while (isspace((unsigned char)**at)) ++*at;
}

static void put_utf8(char **out, unsigned code) {
    if (code < 0x80) {
        *(*out)++ = (char)code;
    } else if (code < 0x800) {
        *(*out)++ = (char)(0xC0 | code >> 6);
        *(*out)++ = (char)(0x80 | (code & 0x3F));
    } else {
        *(*out)++ = (char)(0xE0 | code >> 12);
        *(*out)++ = (char)(0x80 | (code >> 6 & 0x3F));
        *(*out)++ = (char)(0x80 | (code & 0x3F));
    }
}

/* A text, its opening quote already read. NULL when it does not end. */
static char *parse_text(const char **at) {
    char *text = malloc(strlen(*at) + 1), *out = text;
    while (**at && **at != '"') {
        if (**at != '\\') {
            *out++ = *(*at)++;
            continue;
        }
        ++*at;
        const char *escapes = "\"\\/bfnrt", *means = "\"\\/\b\f\n\r\t", *found;
        if (**at == 'u' && strnlen(*at, 5) == 5) {
            char digits[5] = {(*at)[1], (*at)[2], (*at)[3], (*at)[4], 0};
            put_utf8(&out, (unsigned)strtoul(digits, NULL, 16));
            *at += 5;
        } else if (**at && (found = strchr(escapes, **at))) {
            *out++ = means[found - escapes];
            ++*at;
        } else {
            break;
        }
    }
    *out = 0;
    if (**at != '"') {
        free(text);
        return NULL;
    }
    ++*at;
    return text;
}

/* The members of a list or an object up to `close`. 0 when something is wrong. */
static int parse_members(const char **at, Json *parent, char close, int depth) {
    Json **last = &parent->first;
    skip(at);
    if (**at == close) return ++*at, 1;
    for (;;) {
        char *key = NULL;
        skip(at);
        if (close == '}') {
            if (*(*at)++ != '"' || !(key = parse_text(at))) return 0;
            skip(at);
            if (*(*at)++ != ':') return free(key), 0;
        }
        Json *member = parse_value(at, depth + 1);
        if (!member) return free(key), 0;
        member->key = key;
        *last = member;
        last = &member->next;
        skip(at);
        char c = *(*at)++;
        if (c == close) return 1;
        if (c != ',') return 0;
    }
}

static int word(const char **at, const char *expected) {
    size_t length = strlen(expected);
    if (strncmp(*at, expected, length)) return 0;
    *at += length;
    return 1;
}

static Json *parse_value(const char **at, int depth) {
    Json *value = calloc(1, sizeof *value);
    int good = 1;
    skip(at);
    if (depth > 64) {
        good = 0;
    } else if (**at == '{' || **at == '[') {
        char close = *(*at)++ == '{' ? '}' : ']';
        value->type = close == '}' ? JSON_OBJECT : JSON_LIST;
        good = parse_members(at, value, close, depth);
    } else if (**at == '"') {
        ++*at;
        value->type = JSON_TEXT;
        good = (value->text = parse_text(at)) != NULL;
    } else if (word(at, "true")) {
        value->type = JSON_TRUE;
    } else if (word(at, "false")) {
        value->type = JSON_FALSE;
    } else if (word(at, "null")) {
        value->type = JSON_NULL;
    } else {
        char *end, *whole;
        double fraction = strtod(*at, &end);
        value->type = JSON_NUMBER;
        value->number = strtoll(*at, &whole, 10);
        if (whole != end) value->number = (long long)fraction;
        good = end != *at;
        *at = end;
    }
    if (!good) {
        json_free(value);
        return NULL;
    }
    return value;
}

Json *json_parse(const char *text) {
    Json *value = parse_value(&text, 0);
    skip(&text);
    if (value && *text) {
        json_free(value);
        return NULL;
    }
    return value;
}

void json_free(Json *value) {
    while (value) {
        Json *next = value->next;
        json_free(value->first);
        free(value->key);
        free(value->text);
        free(value);
        value = next;
    }
}

const Json *json_get(const Json *object, const char *key) {
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (const Json *member = object->first; member; member = member->next)
        if (!strcmp(member->key, key)) return member;
    return NULL;
}

const Json *json_at(const Json *list, int index) {
    const Json *member = list && list->type == JSON_LIST ? list->first : NULL;
    while (member && index-- > 0) member = member->next;
    return member;
}

int json_length(const Json *list) {
    int length = 0;
    for (const Json *member = json_at(list, 0); member; member = member->next) ++length;
    return length;
}

long long json_number(const Json *object, const char *key, long long otherwise) {
    const Json *found = json_get(object, key);
    return found && found->type == JSON_NUMBER ? found->number : otherwise;
}

const char *json_text(const Json *object, const char *key, const char *otherwise) {
    const Json *found = json_get(object, key);
    return found && found->type == JSON_TEXT ? found->text : otherwise;
}

int json_true(const Json *object, const char *key) {
    const Json *found = json_get(object, key);
    return found && found->type == JSON_TRUE;
}

int json_null(const Json *object, const char *key) {
    const Json *found = json_get(object, key);
    return found && found->type == JSON_NULL;
}
