/* config */
typedef int fired_config_is_not_written_yet;
