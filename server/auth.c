/* auth: the credentials file as a table, and the one check.
 *
 * A token is a random key, not a password that a person made up: auth_hash_token() refuses short
 * ones. Its hash cannot be guessed back, so one salted SHA-256 is enough; a slow hash would only
 * let strangers burn our time.
 *
 * What a caller sends is compared with every token, without an early end, by CRYPTO_memcmp(): how
 * long it takes says nothing about which token was near.
 *
 * Invariant: nothing changes after auth_parse(), so any thread may check. */
#include "auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fire/v1/admin.pb-c.h"
#include "fire/v1/monitor.pb-c.h"
#include "fire/v1/reinit.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "options.h"
#include "yaml_file.h"

#define TOKEN_BYTES_MIN 16u
#define TOKEN_BYTES_MAX 512u
#define SALT_BYTES      16u
#define DIGEST_BYTES    32u
#define ENTRIES_MAX     1024u
#define RULES_MAX       64u
#define NAME_BYTES_MAX  255u
#define METHODS_MAX     64u
#define METHOD_BYTES    128u
#define HASH_PREFIX     "sha256:"
#define HASH_BYTES_MAX  (AUTH_HASH_BYTES - 1)
#define LOCAL_TENANT    "local"
#define OPEN_TENANT     "anonymous"
#define OTHERS_RIGHTS   (S_IRWXO | S_IWGRP)

_Static_assert(sizeof(HASH_PREFIX) + 2 * SALT_BYTES + 1 + 2 * DIGEST_BYTES <= AUTH_HASH_BYTES,
               "a hash must fit");

/* An entry of either list. Tokens have name and hash, certificates a subject. */
struct entry {
    char *name;
    char *hash;
    char *subject;
    char *tenant;
    char **allow;
    uint32_t allow_count;
};

struct document {
    struct entry *tokens;
    uint32_t tokens_count;
    struct entry *certificates;
    uint32_t certificates_count;
};

struct secret {
    unsigned char salt[SALT_BYTES];
    unsigned char digest[DIGEST_BYTES];
};

struct auth {
    bool configured;
    struct document *document; /* NULL: the file has no entry */
    struct secret *secrets;    /* one a token */
    EVP_MD *sha256;
};

#define ENTRY_TEXT(member, least, most)                                                            \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER, struct entry, member, least, most)
#define ENTRY_ALLOW                                                                                \
    CYAML_FIELD_SEQUENCE("allow", CYAML_FLAG_POINTER, struct entry, allow, &rule_schema, 1,        \
                         RULES_MAX)
#define ENTRY_LIST(member, schema)                                                                 \
    CYAML_FIELD_SEQUENCE(#member, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct document,       \
                         member, schema, 0, ENTRIES_MAX)

static const struct cyaml_schema_value rule_schema = { CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char,
                                                                          1, METHOD_BYTES - 1) };
static const struct cyaml_schema_field token_fields[] = {
    ENTRY_TEXT(name, 1, NAME_BYTES_MAX),
    ENTRY_TEXT(tenant, 1, NAME_BYTES_MAX),
    ENTRY_TEXT(hash, 1, HASH_BYTES_MAX),
    ENTRY_ALLOW,
    CYAML_FIELD_END,
};
static const struct cyaml_schema_field certificate_fields[] = {
    ENTRY_TEXT(subject, 1, NAME_BYTES_MAX),
    ENTRY_TEXT(tenant, 1, NAME_BYTES_MAX),
    ENTRY_ALLOW,
    CYAML_FIELD_END,
};
static const struct cyaml_schema_value token_schema = { CYAML_VALUE_MAPPING(
    CYAML_FLAG_DEFAULT, struct entry, token_fields) };
static const struct cyaml_schema_value certificate_schema = { CYAML_VALUE_MAPPING(
    CYAML_FLAG_DEFAULT, struct entry, certificate_fields) };
static const struct cyaml_schema_field document_fields[] = {
    ENTRY_LIST(tokens, &token_schema),
    ENTRY_LIST(certificates, &certificate_schema),
    CYAML_FIELD_END,
};
static const struct cyaml_schema_value document_schema = { CYAML_VALUE_MAPPING(
    CYAML_FLAG_POINTER, struct document, document_fields) };

bool auth_tenant_is_valid(const char *name)
{
    const size_t length = strlen(name);

    return length >= 1 && length < TENANT_NAME_BYTES &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
               length;
}

/* Whether a rule allows a method: "*", "service/" and a star, or the method itself. */
static bool rule_allows(const char *rule, const char *method)
{
    const size_t length = strlen(rule);

    if (strcmp(rule, "*") == 0 || strcmp(rule, method) == 0)
        return true;
    return length > 2 && strcmp(rule + length - 2, "/*") == 0 &&
           strncmp(rule, method, length - 1) == 0;
}

/* The names a rule may have: every method of every service, and the services themselves. */
struct known {
    char names[METHODS_MAX][METHOD_BYTES];
    const char *pointers[METHODS_MAX];
    size_t count;
};

static void known_add(struct known *known, const char *service, const char *method)
{
    FIRE_ASSERT(known->count < METHODS_MAX);
    snprintf(known->names[known->count], METHOD_BYTES, "%s/%s", service, method);
    known->pointers[known->count] = known->names[known->count];
    known->count++;
}

static void known_fill(struct known *known)
{
    static const ProtobufCServiceDescriptor *const services[] = {
        &fire__v1__reinit_service__descriptor,
        &fire__v1__admin_service__descriptor,
        &fire__v1__monitor_service__descriptor,
        &grpc__health__v1__health__descriptor,
        &grpc__reflection__v1__server_reflection__descriptor,
        &grpc__reflection__v1alpha__server_reflection__descriptor,
    };
    static const char *const pages[] = {
        "metrics", "healthz", "readyz", "dashboard", "session", "*"
    }; /* of http.c */

    known->count = 0;
    for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
        for (unsigned j = 0; j < services[i]->n_methods; j++)
            known_add(known, services[i]->name, services[i]->methods[j].name);
        known_add(known, services[i]->name, "*");
    }
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        known_add(known, "http", pages[i]);
}

/* A rule that allows nothing that exists is a mistake: who wrote it believes that it does. */
static enum fire_status check_rule(const struct known *known, const char *owner, const char *rule,
                                   struct fire_error *error)
{
    const char *nearest;

    if (strcmp(rule, "*") == 0)
        return FIRE_OK;
    for (size_t i = 0; i < known->count; i++)
        if (strcmp(rule, known->names[i]) == 0)
            return FIRE_OK;
    nearest = fire_nearest_name(rule, known->pointers, known->count);
    return fire_fail(error, FIRE_BAD_REQUEST, "allow",
                     "%.60s: no method \"%.100s\"%s%s; a rule is a method such as "
                     "fire.v1.ReinitService/Reinit, a service and /*, http/metrics, or *",
                     owner, rule, nearest ? "; did you mean " : "", nearest ? nearest : "");
}

static int hex_digit(char letter)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = letter ? strchr(digits, letter) : NULL;

    return found ? (int)(found - digits) : -1;
}

/* Reads `count` bytes from twice as many digits; false when one is none. */
static bool read_hex(const char *text, unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int high = hex_digit(text[2 * i]);
        const int low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);

        if (low < 0)
            return false;
        bytes[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static void write_hex(const unsigned char *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* "sha256:<32 digits>:<64 digits>" */
static bool read_secret(const char *hash, struct secret *secret)
{
    const size_t prefix = strlen(HASH_PREFIX);
    const char *salt = hash + prefix;
    const char *digest = salt + (size_t)2 * SALT_BYTES + 1;

    if (strlen(hash) != prefix + (size_t)2 * SALT_BYTES + 1 + (size_t)2 * DIGEST_BYTES)
        return false;
    return strncmp(hash, HASH_PREFIX, prefix) == 0 && digest[-1] == ':' &&
           read_hex(salt, secret->salt, SALT_BYTES) &&
           read_hex(digest, secret->digest, DIGEST_BYTES);
}

static bool hash_token(const EVP_MD *sha256, EVP_MD_CTX *context,
                       const unsigned char salt[SALT_BYTES], const char *token, size_t token_bytes,
                       unsigned char digest[DIGEST_BYTES])
{
    return EVP_DigestInit_ex(context, sha256, NULL) == 1 &&
           EVP_DigestUpdate(context, salt, SALT_BYTES) == 1 &&
           EVP_DigestUpdate(context, token, token_bytes) == 1 &&
           EVP_DigestFinal_ex(context, digest, NULL) == 1;
}

static enum fire_status check_entry(const struct known *known, const struct entry *entry,
                                    struct fire_error *error)
{
    const char *owner = entry->name ? entry->name : entry->subject;
    enum fire_status status = FIRE_OK;

    if (!auth_tenant_is_valid(entry->tenant))
        return fire_fail(error, FIRE_BAD_REQUEST, "tenant",
                         "%.60s: tenant \"%.64s\" must be 1 to %d of letters, digits and . _ -",
                         owner, entry->tenant, TENANT_NAME_BYTES - 1);
    for (uint32_t i = 0; i < entry->allow_count && status == FIRE_OK; i++)
        status = check_rule(known, owner, entry->allow[i], error);
    return status;
}

static enum fire_status check_tokens(struct auth *auth, const struct known *known,
                                     struct fire_error *error)
{
    const struct document *document = auth->document;

    auth->secrets = calloc(document->tokens_count + 1u, sizeof(*auth->secrets));
    if (!auth->secrets)
        return fire_fail_memory(error, (document->tokens_count + 1u) * sizeof(*auth->secrets));
    for (uint32_t i = 0; i < document->tokens_count; i++) {
        const struct entry *entry = &document->tokens[i];
        const enum fire_status status = check_entry(known, entry, error);

        if (status != FIRE_OK)
            return status;
        if (!read_secret(entry->hash, &auth->secrets[i]))
            return fire_fail(error, FIRE_BAD_REQUEST, "hash",
                             "token %.60s: hash must be sha256:<%u digits>:<%u digits>, as "
                             "fired --hash-token prints it",
                             entry->name, 2 * SALT_BYTES, 2 * DIGEST_BYTES);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(document->tokens[j].name, entry->name) == 0)
                return fire_fail(error, FIRE_BAD_REQUEST, "name",
                                 "token %.60s is listed twice; give each its own name",
                                 entry->name);
    }
    return FIRE_OK;
}

static enum fire_status check_certificates(const struct document *document,
                                           const struct known *known, struct fire_error *error)
{
    for (uint32_t i = 0; i < document->certificates_count; i++) {
        const struct entry *entry = &document->certificates[i];
        const enum fire_status status = check_entry(known, entry, error);

        if (status != FIRE_OK)
            return status;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(document->certificates[j].subject, entry->subject) == 0)
                return fire_fail(error, FIRE_BAD_REQUEST, "subject",
                                 "certificate %.60s is listed twice; keep one entry",
                                 entry->subject);
    }
    return FIRE_OK;
}

/* Parses under a name for messages. */
static enum fire_status parse(const char *name, const char *yaml, size_t bytes, struct auth **out,
                              struct fire_error *error)
{
    struct auth *auth = calloc(1, sizeof(*auth));
    struct known *known = calloc(1, sizeof(*known));
    enum fire_status status = FIRE_OK;
    void *document = NULL;

    *out = NULL;
    if (auth)
        auth->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!auth || !known || !auth->sha256) {
        auth_close(auth);
        free(known);
        return fire_fail_memory(error, sizeof(*auth) + sizeof(*known));
    }
    auth->configured = true;
    known_fill(known);
    status = yaml_file_load(name, yaml, bytes, &document_schema, &document, error);
    auth->document = document;
    if (status == FIRE_OK && document)
        status = check_tokens(auth, known, error);
    if (status == FIRE_OK && document)
        status = check_certificates(auth->document, known, error);
    free(known);
    if (status != FIRE_OK) {
        auth_close(auth);
        yaml_file_one_line(error);
        return status;
    }
    *out = auth;
    return FIRE_OK;
}

enum fire_status auth_parse(const char *yaml, size_t bytes, struct auth **auth,
                            struct fire_error *error)
{
    return parse("credentials", yaml, bytes, auth, error);
}

enum fire_status auth_open(const char *path, struct auth **auth, struct fire_error *error)
{
    enum fire_status status;
    struct stat state;
    size_t bytes;
    char *text;

    *auth = NULL;
    if (!path || !path[0]) {
        *auth = calloc(1, sizeof(**auth));
        return *auth ? FIRE_OK : fire_fail_memory(error, sizeof(**auth));
    }
    status = yaml_file_read(path, &text, &bytes, &state, error);
    if (status != FIRE_OK)
        return status;
    if ((state.st_mode & OTHERS_RIGHTS) != 0)
        status = fire_fail(error, FIRE_DENIED, "credentials",
                           "%.200s can be read or changed by others (mode %03o); chmod 600 it",
                           path, (unsigned)(state.st_mode & 0777));
    else
        status = parse(path, text, bytes, auth, error);
    OPENSSL_cleanse(text, bytes);
    free(text);
    return status;
}

void auth_close(struct auth *auth)
{
    if (!auth)
        return;
    yaml_file_free(&document_schema, auth->document);
    free(auth->secrets);
    EVP_MD_free(auth->sha256);
    free(auth);
}

bool auth_has_credentials(const struct auth *auth)
{
    return auth->configured;
}

/* The entry of the caller's token. FIRE_OK with NULL when there is none: no token fits. */
static enum fire_status find_token(const struct auth *auth, const struct auth_caller *caller,
                                   const struct entry **found, struct fire_error *error)
{
    const uint32_t count = auth->document ? auth->document->tokens_count : 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned char digest[DIGEST_BYTES];
    bool hashed = context != NULL;

    *found = NULL;
    /* No token of ours is longer; a long one would only be work for the loop. */
    for (uint32_t i = 0; i < count && hashed && caller->token_bytes <= TOKEN_BYTES_MAX; i++) {
        hashed = hash_token(auth->sha256, context, auth->secrets[i].salt, caller->token,
                            caller->token_bytes, digest);
        if (hashed && CRYPTO_memcmp(digest, auth->secrets[i].digest, DIGEST_BYTES) == 0)
            *found = &auth->document->tokens[i];
    }
    EVP_MD_CTX_free(context);
    OPENSSL_cleanse(digest, sizeof(digest));
    if (hashed)
        return FIRE_OK;
    *found = NULL;
    return fire_fail_memory(error, sizeof(digest));
}

static const struct entry *find_certificate(const struct auth *auth,
                                            const struct auth_caller *caller)
{
    const uint32_t count = auth->document ? auth->document->certificates_count : 0;

    for (uint32_t i = 0; i < count; i++)
        for (size_t j = 0; j < caller->name_count; j++)
            if (strcmp(auth->document->certificates[i].subject, caller->names[j]) == 0)
                return &auth->document->certificates[i];
    return NULL;
}

static bool is_open_to_all(const char *method)
{
    static const char *const methods[] = { "grpc.health.v1.Health/Check", "http/healthz",
                                           "http/readyz", "http/dashboard" };

    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(methods[i], method) == 0)
            return true;
    return false;
}

/* Without credentials: whoever is on this machine may do everything. */
static enum fire_status check_local(const struct auth_caller *caller,
                                    char tenant[TENANT_NAME_BYTES], struct fire_error *error)
{
    const char *name = caller->claimed_tenant ? caller->claimed_tenant : LOCAL_TENANT;

    if (!caller->local)
        return fire_fail(error, FIRE_UNAUTHENTICATED, NULL,
                         "callers from other machines need a credential, and this daemon has none "
                         "configured; its operator sets credentials");
    if (!auth_tenant_is_valid(name))
        return fire_fail(error, FIRE_BAD_REQUEST, "x-fired-tenant",
                         "x-fired-tenant must be 1 to %d of letters, digits and . _ -",
                         TENANT_NAME_BYTES - 1);
    memcpy(tenant, name, strlen(name) + 1);
    return FIRE_OK;
}

enum fire_status auth_check(const struct auth *auth, const struct auth_caller *caller,
                            const char *method, char tenant[TENANT_NAME_BYTES],
                            struct fire_error *error)
{
    const struct entry *entry = NULL;
    enum fire_status status = FIRE_OK;

    tenant[0] = '\0';
    if (!auth->configured)
        return check_local(caller, tenant, error);
    if (caller->token && caller->token_bytes <= TOKEN_BYTES_MAX)
        status = find_token(auth, caller, &entry, error);
    else if (!caller->token)
        entry = find_certificate(auth, caller);
    if (status != FIRE_OK)
        return status;

    for (uint32_t i = 0; entry && i < entry->allow_count; i++)
        if (rule_allows(entry->allow[i], method)) {
            memcpy(tenant, entry->tenant, strlen(entry->tenant) + 1);
            return FIRE_OK;
        }
    if (is_open_to_all(method)) {
        const char *name = entry ? entry->tenant : OPEN_TENANT;

        memcpy(tenant, name, strlen(name) + 1);
        return FIRE_OK;
    }
    if (entry)
        return fire_fail(error, FIRE_DENIED, NULL,
                         "this credential does not allow the method; its operator adds it to the "
                         "rules");
    return fire_fail(error, FIRE_UNAUTHENTICATED, NULL, "%s",
                     caller->token ? "the bearer token is not known"
                                   : "give a bearer token, or a client certificate that is known");
}

enum fire_status auth_hash_token(const char *token, size_t token_bytes, char *text,
                                 size_t text_bytes, struct fire_error *error)
{
    char digest_text[2 * DIGEST_BYTES + 1], salt_text[2 * SALT_BYTES + 1];
    unsigned char digest[DIGEST_BYTES], salt[SALT_BYTES];
    EVP_MD_CTX *context;
    bool hashed;

    FIRE_ASSERT(text_bytes >= AUTH_HASH_BYTES);
    if (token_bytes < TOKEN_BYTES_MIN || token_bytes > TOKEN_BYTES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "token",
                         "a token must have %u to %u characters; openssl rand -hex 32 makes a good "
                         "one",
                         TOKEN_BYTES_MIN, TOKEN_BYTES_MAX);
    for (size_t i = 0; i < token_bytes; i++)
        if (token[i] <= ' ' || token[i] >= 0x7f)
            return fire_fail(error, FIRE_BAD_REQUEST, "token",
                             "a token must be printable ASCII without blanks; openssl rand -hex 32 "
                             "makes a good one");
    context = EVP_MD_CTX_new();
    hashed = context && RAND_bytes(salt, SALT_BYTES) == 1 &&
             hash_token(EVP_sha256(), context, salt, token, token_bytes, digest);
    EVP_MD_CTX_free(context);
    if (!hashed)
        return fire_fail(error, FIRE_IO, "token",
                         "libcrypto gives no random bytes or no SHA-256; check its installation");
    write_hex(salt, SALT_BYTES, salt_text);
    write_hex(digest, DIGEST_BYTES, digest_text);
    snprintf(text, text_bytes, HASH_PREFIX "%s:%s", salt_text, digest_text);
    return FIRE_OK;
}
