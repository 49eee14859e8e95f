/* server */
typedef int fired_server_is_not_written_yet;
