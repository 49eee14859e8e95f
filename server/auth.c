/* auth */
typedef int fired_auth_is_not_written_yet;
