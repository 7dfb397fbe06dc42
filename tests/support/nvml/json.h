/* A small JSON reader: text in, a tree out. Enough for the state file, not for the world. */

#ifndef NVML_SIM_JSON_H
#define NVML_SIM_JSON_H

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT } JsonType;

typedef struct Json {
    JsonType type;
    char *key;  /* in an object */
    char *text; /* of a text */
    long long number;
    struct Json *first; /* of a list or an object */
    struct Json *next;
} Json;

/* NULL when the text is not one complete value. */
Json *json_parse(const char *text);
void json_free(Json *value);

/* NULL for what is not there. */
const Json *json_get(const Json *object, const char *key);
const Json *json_at(const Json *list, int index);
int json_length(const Json *list);

/* The default for what is not there or of another type. */
long long json_number(const Json *object, const char *key, long long otherwise);
const char *json_text(const Json *object, const char *key, const char *otherwise);
int json_true(const Json *object, const char *key);
/* Whether the member is there and null. */
int json_null(const Json *object, const char *key);

#endif
